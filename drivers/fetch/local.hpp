#ifndef K3_DRIVERS_FETCH_LOCAL_HPP
#define K3_DRIVERS_FETCH_LOCAL_HPP
// What of a listing is in the folder already, and whether it is right. A file of the right size is read whole once and
// its digest compared; the manifest remembers that, until size or time of the file change.
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "drivers/fetch/digest.hpp"
#include "drivers/fetch/manifest.hpp"
#include "drivers/fetch/part_file.hpp"
#include "drivers/fetch/progress.hpp"
#include "k3/core/error.hpp"
#include "k3/io/jobs.hpp"

namespace k3::fetch {

enum class State {
    verified,  // digest and size
    sized,     // size; the server offers no digest
    missing,
    partial,
    wrong_size,
    wrong_digest,
    unreadable,
    failed,  // this run could not fetch it
};

constexpr const char* name_of(State state) noexcept {
    switch (state) {
        case State::verified: return "verified";
        case State::sized: return "size_only";
        case State::missing: return "missing";
        case State::partial: return "partial";
        case State::wrong_size: return "wrong_size";
        case State::wrong_digest: return "wrong_digest";
        case State::unreadable: return "unreadable";
        case State::failed: return "failed";
    }
    return "";
}

struct FileState {
    const RemoteFile* file = nullptr;
    State state = State::missing;
    std::string why{};
    std::uint64_t kept = 0;  // bytes of an earlier run

    bool good() const noexcept { return state == State::verified || state == State::sized; }
};

inline std::string wrong_digest_text(const Digest& wanted, const std::string& found) {
    return "its " + wanted.kind + " is " + found + ", the listing says " + wanted.hex;
}

/// Why files are looked at. To fetch: what was found right before is believed, and what is wrong loses its name, so
/// that nothing takes it for good meanwhile. To verify: every file is read from the disk, and nothing changes.
enum class Purpose { fetch, verify };

/// By size and by what the manifest remembers. Files to be read are `wrong_digest` with an empty `why`.
inline FileState glance(const Manifest& manifest, const RemoteFile& file, Purpose purpose) {
    const std::string path = manifest.local(file);
    const auto stamp = Stamp::of(path);
    if (!stamp) {
        const std::uint64_t kept = PartFile::kept(path, file.size, manifest.identity(file));
        if (kept == 0) return {&file, State::missing, "is not there"};
        return {&file, State::partial, std::to_string(kept) + " of " + std::to_string(file.size) + " bytes are there",
                kept};
    }
    if (stamp->size != file.size) {
        return {&file, State::wrong_size,
                "has " + std::to_string(stamp->size) + " bytes, the listing says " + std::to_string(file.size),
                PartFile::kept(path, file.size, manifest.identity(file))};
    }
    if (!file.digest && manifest.is_stale(file))
        return {&file, State::missing, "is of another version",
                PartFile::kept(path, file.size, manifest.identity(file))};
    if (!file.digest) return {&file, State::sized};
    return {&file,
            purpose == Purpose::fetch && manifest.is_marked(file, *stamp) ? State::verified : State::wrong_digest};
}

/// Looks at every file of `wanted`, without reading any.
inline std::vector<FileState> glance_at(const Manifest& manifest, const std::vector<const RemoteFile*>& wanted,
                                        Purpose purpose) {
    std::vector<FileState> states;
    for (const RemoteFile* file : wanted) states.push_back(glance(manifest, *file, purpose));
    return states;
}

/// Whether only its digest can tell.
inline bool is_unread(const FileState& state) { return state.state == State::wrong_digest && state.why.empty(); }

/// Files of another size or version lose their names.
inline void remove_wrong(const Manifest& manifest, const std::vector<FileState>& states, Progress& progress) {
    for (const FileState& state : states) {
        if (state.good() || is_unread(state) || state.state == State::unreadable) continue;
        const std::string path = manifest.local(*state.file);
        if (Stamp::of(path) && ::unlink(path.c_str()) == 0)
            progress.note(state.file->path + ": " + state.why + "; removed");
    }
}

/// Reads the files that only their digest can tell of. One that cannot be read is as bad as a damaged one; it keeps its
/// name until another takes it. Errors: Code::interrupted.
inline void read_unread(const Manifest& manifest, Ledger& ledger, std::vector<FileState>& states, Purpose purpose,
                        unsigned threads, const std::atomic<bool>& stop, Progress& progress) {
    std::vector<std::size_t> unread;
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < states.size(); ++i) {
        if (!is_unread(states[i])) continue;
        unread.push_back(i);
        bytes += states[i].file->size;
    }
    if (unread.empty()) return;
    progress.begin("checked", 0, bytes);
    progress.note("reading " + std::to_string(unread.size()) + " files, " + drivers::show_bytes(bytes) +
                  ", to compare digests");
    std::atomic<std::uint64_t> done{0};
    threads = std::min(threads, std::max(1U, std::thread::hardware_concurrency()));
    const From from = purpose == Purpose::verify ? From::disk : From::cache;
    io::run_jobs(threads, unread.size(), [&](unsigned, std::size_t i) {
        FileState& state = states[unread[i]];
        const RemoteFile& file = *state.file;
        const std::string path = manifest.local(file);
        bool removed = false;
        try {
            const std::string found = digest_of(path, file.digest.kind, from, stop, [&](std::uint64_t n) {
                done += n;
                progress.show(done, file.path);
            });
            if (found == file.digest.hex) {
                state.state = State::verified;
                return ledger.mark(file);
            }
            state.why = wrong_digest_text(file.digest, found);
            removed = purpose == Purpose::fetch && ::unlink(path.c_str()) == 0;
        } catch (const Error& error) {
            if (error.code() != Code::read) throw;
            state.state = State::unreadable;
            state.why = error.message();
        }
        ledger.unmark(file);
        progress.note(file.path + ": " + state.why + (removed ? "; removed" : ""));
    });
    progress.end();
}

/// Bytes on the disk that are free once `path` is removed: none of a link, or of a file that has other names.
inline std::uint64_t space_of(const std::string& path) {
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_nlink > 1) return 0;
    return static_cast<std::uint64_t>(info.st_blocks) * 512;
}

/// Errors: Code::plan when the files to fetch do not fit on the disk. What a .part file has is not asked for again, and
/// wrong files make room; those not read yet may be right.
inline void require_space(const std::string& folder, const Manifest& manifest, const std::vector<FileState>& states) {
    std::uint64_t need = 0, room = 0;
    for (const FileState& state : states) {
        if (state.good() || is_unread(state)) continue;
        const std::string path = manifest.local(*state.file);
        need += state.file->size - std::min(state.file->size, space_of(path + kPartEnd));
        if (state.state != State::unreadable) room += space_of(path);
    }
    if (need == 0) return;
    need += std::uint64_t{16} << 20;
    struct statvfs disk {};
    if (::statvfs(folder.c_str(), &disk) != 0) io::PendingFile::fail(folder, "cannot be examined", errno);
    const std::uint64_t free_bytes = std::uint64_t{disk.f_bavail} * disk.f_frsize;
    if (free_bytes + room >= need) return;
    need -= room;
    throw Error(Code::plan,
                "needs " + drivers::show_bytes(need) + " more (" + std::to_string(need) + " bytes), " +
                    drivers::show_bytes(free_bytes) + " are free",
                "free some space, or choose another disk", {.path = folder});
}

}  // namespace k3::fetch
#endif
