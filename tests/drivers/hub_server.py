"""A hub on 127.0.0.1 for tests: listing, commits, files with ranges, a second server to redirect to, and faults on
demand. Python's library only."""
import collections
import hashlib
import http.server
import json
import ssl
import threading
import time
import urllib.parse

Request = collections.namedtuple("Request", "server path range headers number")


class Declared:
    """A file that is only listed: its size is all there is of it."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128  # with the usual 5, eight connections at once wait a second for one another
    daemon_threads = True


class Hub:
    """`files`: path -> bytes. What a test sets while it runs:
    fault(Request) for requests of files -> None, or a dict of
        status=, headers=  answer so;      cut=N       close the connection after N bytes of the body
        as_status=N        send the file, with this status
        whole=True         ignore ranges;  damage=N    flip a bit of byte N of the file
        html=True          a web page;     length=N    say that the file is N bytes longer than it is
        chunked=N          no length, and N bytes more (or fewer) than there are
        shift=N            another range than was asked for
        wait=S             seconds before the answer;  pause=S    after the first bytes of a body
    redirect: None, or the origin files are served from (`self.cdn` is one)."""

    def __init__(self, files, repo="org/model", commit="c0ffee" + "0" * 34, tls=None):
        self.files, self.repo, self.commit, self.branch = dict(files), repo, commit, "main"
        self.fault = self.api_fault = lambda request: None
        self.redirect, self.page, self.digests, self.says_commit = None, 1000, True, True
        self.bytes_per_second = None
        self.listed = {}  # path -> entry that replaces the true one
        self.log, self.sent, self.active, self.most_active = [], 0, 0, 0
        self.lock = threading.Lock()
        self.servers = []
        self.origin = self.start("hub", tls)
        self.cdn = self.start("cdn", None)
        self.cdn_by_name = self.cdn.replace("127.0.0.1", "localhost")

    def start(self, name, tls):
        server = Server(("127.0.0.1", 0), Handler)
        server.hub, server.name = self, name
        server.handle_error = lambda *_: None  # clients that are killed
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self.servers.append(server)
        return f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}"

    def close(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def forget(self):
        with self.lock:
            self.log, self.sent, self.most_active = [], 0, 0

    def of_files(self):
        """The requests that a file was asked for with, as (path, (begin, end) or None)."""
        with self.lock:
            return [(r.path, r.range) for r in self.log if r.path in self.files]

    def entry(self, path):
        data = self.files[path]
        entry = {"type": "file", "path": path, "size": len(data)}
        if self.digests and not isinstance(data, Declared):
            entry["oid"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            if path.endswith((".safetensors", ".model")):
                entry["oid"] = "0" * 40
                entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 135}
        return self.listed.get(path, entry)

    def tree(self):
        folders = sorted({path.rsplit("/", 1)[0] for path in self.files if "/" in path})
        return ([{"type": "directory", "path": path, "size": 0, "oid": "0" * 40} for path in folders] +
                [self.entry(path) for path in list(self.files)] +
                [entry for path, entry in self.listed.items() if path not in self.files])


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        hub = self.server.hub
        url = urllib.parse.urlsplit(self.path)
        path, query = urllib.parse.unquote(url.path), urllib.parse.parse_qs(url.query)
        span = None
        if "Range" in self.headers:
            first, last = self.headers["Range"].split("=")[1].split("-")
            span = int(first), int(last) + 1 if last else None
        resolve, cdn = f"/{hub.repo}/resolve/", "/cdn/"
        name = path
        if path.startswith(resolve):
            name = path[len(resolve):].split("/", 1)[1]
        elif self.server.name == "cdn" and path.startswith(cdn):
            name = path[len(cdn):]
        with hub.lock:
            request = Request(self.server.name, name, span, dict(self.headers), len(hub.log))
            hub.log.append(request)
        if name == path:
            return self.api(path, query, request)
        if name not in hub.files:
            return self.answer(404, b"no such file", {"X-Error-Code": "EntryNotFound"})
        revision = path[len(resolve):].split("/", 1)[0] if self.server.name == "hub" else hub.commit
        if revision not in (hub.commit, hub.branch):
            return self.answer(404, b"no such revision", {"X-Error-Code": "RevisionNotFound"})
        fault = hub.fault(request) or {}
        if "wait" in fault:
            time.sleep(fault["wait"])
        if "status" in fault:
            return self.answer(fault["status"], b"<html>no</html>", fault.get("headers", {}))
        if self.server.name == "hub" and hub.redirect:
            where = f"{hub.redirect}/cdn/{urllib.parse.quote(name)}?signature=1"
            return self.answer(302, b"over there", {"Location": where, "X-Repo-Commit": hub.commit})
        with hub.lock:
            hub.active += 1
            hub.most_active = max(hub.most_active, hub.active)
        try:
            self.file(hub.files[name], span, fault)
        finally:
            with hub.lock:
                hub.active -= 1

    def api(self, path, query, request):
        hub = self.server.hub
        base = f"/api/models/{hub.repo}/"
        fault = hub.api_fault(request)
        if fault:
            time.sleep(fault.get("wait", 0))
            if "status" in fault:
                return self.answer(fault["status"], fault.get("body", b"no"), fault.get("headers", {}))
        known = path.rsplit("/", 1)[-1] in (hub.branch, hub.commit)
        if path.startswith(base + "revision/") and known and hub.says_commit:
            return self.answer(200, json.dumps({"id": hub.repo, "sha": hub.commit}).encode(),
                               {"Content-Type": "application/json"})
        if path.startswith(base + "tree/") and known and query.get("recursive") == ["true"]:
            entries, at = hub.tree(), int(query.get("cursor", ["0"])[0])
            headers = {"Content-Type": "application/json"}
            if at + hub.page < len(entries):
                headers["Link"] = f'<{path}?recursive=true&cursor={at + hub.page}>; rel="next"'
            return self.answer(200, json.dumps(entries[at:at + hub.page]).encode(), headers)
        return self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def answer(self, status, body, headers):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for key, value in {"Content-Type": "text/plain", **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)

    def file(self, data, span, fault):
        hub = self.server.hub
        if fault.get("html"):
            return self.answer(200, b"<!DOCTYPE html><p>Please log in", {"Content-Type": "text/html; charset=utf-8"})
        if "damage" in fault:
            data = bytearray(data)
            data[fault["damage"]] ^= 4
        size, begin, end = len(data), 0, len(data)
        partial = span is not None and not fault.get("whole")
        if partial:
            begin, end = span[0], min(span[1] or size, size)
            if begin >= size:
                return self.answer(416, b"", {"Content-Range": f"bytes */{size}"})
            begin += fault.get("shift", 0)
        body = bytes(data[begin:end])
        self.send_response(fault.get("as_status", 206 if partial else 200))
        self.send_header("Content-Type", "application/octet-stream")
        if hub.says_commit or hub.redirect is None:
            self.send_header("X-Repo-Commit", hub.commit)
        more = fault.get("length", 0)
        if partial:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size + more}")
        if "chunked" in fault:
            body = body + b"x" * fault["chunked"] if fault["chunked"] > 0 else body[:fault["chunked"]]
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for first, last in ((0, 1), (1, len(data)), (len(data), None)):
                if body[first:last]:
                    self.wfile.write(b"%x\r\n" % len(body[first:last]) + body[first:last] + b"\r\n")
                    time.sleep(fault.get("pause", 0) if first == 0 else 0)
            self.wfile.write(b"0\r\n\r\n")
            return None
        self.send_header("Content-Length", str(len(body) + (0 if partial else more)))
        self.end_headers()
        cut = fault.get("cut", len(body))
        step = 16384
        for at in range(0, min(cut, len(body)), step):
            block = body[at:min(at + step, cut)]
            self.wfile.write(block)
            with hub.lock:
                hub.sent += len(block)
            if at == 0 and "pause" in fault:
                time.sleep(fault["pause"])
            if hub.bytes_per_second:
                time.sleep(len(block) / hub.bytes_per_second)
        if cut < len(body) or (more and not partial):
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(2)
        return None
