// k3-fetch: downloads a checkpoint from a hub, in parts that survive any interruption, and verifies what it has.
#include <curl/curl.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "drivers/command_line.hpp"
#include "drivers/exit_code.hpp"
#include "drivers/fetch/listing.hpp"
#include "drivers/fetch/local.hpp"
#include "drivers/fetch/manifest.hpp"
#include "drivers/fetch/options.hpp"
#include "drivers/fetch/progress.hpp"
#include "drivers/fetch/release_sizes.hpp"
#include "drivers/fetch/report.hpp"
#include "drivers/fetch/transfer.hpp"
#include "drivers/next_command.hpp"
#include "k3/core/error.hpp"

namespace {

namespace fetch = k3::fetch;
using k3::Code;
using k3::Error;
using Clock = std::chrono::steady_clock;

std::atomic<bool> g_stop{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set from a signal handler");

void catch_interrupts() {
    for (const int signal : {SIGINT, SIGTERM}) {
        struct sigaction before {};
        if (::sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;  // nohup
        struct sigaction action {};
        action.sa_handler = [](int) { g_stop = true; };
        action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;  // the second one kills
        sigemptyset(&action.sa_mask);
        ::sigaction(signal, &action, nullptr);
    }
}

/// One k3-fetch at a time for a folder. The kernel forgets the lock with the process.
class FolderLock {
  public:
    FolderLock(const std::string& folder, fetch::Progress& progress)
        : fd_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
        if (fd_ >= 0 && ::flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
        const int reason = errno;
        if (fd_ >= 0 && reason == EWOULDBLOCK) {
            ::close(fd_);
            throw Error(Code::usage, "another k3-fetch is at work in it", "wait for it, or end it", {.path = folder});
        }
        progress.note(folder + " cannot be locked, " + std::strerror(reason) + ": see that no other k3-fetch uses it");
    }
    FolderLock(const FolderLock&) = delete;
    FolderLock& operator=(const FolderLock&) = delete;
    ~FolderLock() {
        if (fd_ >= 0) ::close(fd_);
    }

  private:
    int fd_;
};

/// A folder, made if missing. One that was made and got nothing is removed again.
class Folder {
  public:
    /// Errors: Code::write.
    explicit Folder(const std::string& path) {
        std::error_code failure;
        std::filesystem::path at = std::filesystem::absolute(path, failure);
        for (; !at.empty() && !std::filesystem::exists(at, failure) && at != at.parent_path(); at = at.parent_path())
            made_.push_back(at);
        std::filesystem::create_directories(path, failure);
        if (failure || !std::filesystem::is_directory(path, failure)) {
            throw Error(Code::write, "cannot be made into a folder" + (failure ? ": " + failure.message() : ""),
                        "give another path", {.path = path});
        }
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    ~Folder() {
        for (const std::filesystem::path& path : made_) {
            if (::rmdir(path.c_str()) != 0) return;
        }
    }

  private:
    std::vector<std::filesystem::path> made_;  // the innermost first
};

std::vector<const fetch::RemoteFile*> wanted_of(const fetch::Options& options, const fetch::Listing& listing) {
    std::vector<const fetch::RemoteFile*> wanted;
    for (const fetch::RemoteFile& file : listing.files) {
        const auto matches = [&](const std::string& pattern) {
            return ::fnmatch(pattern.c_str(), file.path.c_str(), 0) == 0;
        };
        if (options.include.empty() || std::ranges::any_of(options.include, matches)) wanted.push_back(&file);
    }
    if (wanted.empty()) {
        throw Error(Code::usage,
                    listing.files.empty()
                        ? options.source.repo + " has no files"
                        : "none of its " + std::to_string(listing.files.size()) + " files matches --include",
                    listing.files.empty() ? "check the name and the revision"
                                          : "write a pattern like '*.json'; the first file is " +
                                                k3::drivers::in_quotes(listing.files.front().path));
    }
    return wanted;
}

void say_what_moved(const fetch::Manifest& before, const fetch::Manifest& now, fetch::Progress& progress) {
    if (before.listing().commit == now.listing().commit) return;
    std::size_t other = 0, gone = 0;
    std::string example;
    for (const fetch::RemoteFile& file : before.listing().files) {
        const fetch::RemoteFile* same = now.find(file.path);
        if (same != nullptr) {
            other += now.identity(*same) == before.identity(file) ? 0 : 1;
        } else if (fetch::Stamp::of(before.local(file)) && gone++ == 0) {
            example = file.path;
        }
    }
    progress.note(now.source().revision + " has moved since this folder was fetched: " + std::to_string(other) +
                  " files are others now");
    if (gone > 0) {
        progress.note(std::to_string(gone) + " files in this folder are not in it any more and stay, the first is " +
                      example);
    }
}

void check_same_repository(const fetch::Manifest& before, const fetch::Options& options) {
    if (before.source().repo == options.source.repo) return;
    throw Error(Code::usage, "holds " + before.source().repo + ", not " + options.source.repo,
                "choose another folder, or remove its k3-fetch.json", {.path = options.folder});
}

/// What the folder is compared with when nothing is to be fetched: its own manifest, where it is of that revision.
bool speaks_for(const fetch::Manifest& manifest, const fetch::Options& options) {
    return options.revision.empty() || options.revision == manifest.source().revision ||
           options.revision == manifest.listing().commit;
}

fetch::Manifest ask(const fetch::Options& options, fetch::Progress& progress) {
    progress.note("asking " + options.source.origin() + " for " + options.source.repo + ", revision " +
                  options.source.revision);
    if (options.token_held_back) {
        progress.note("HF_TOKEN is for " + options.http.token_origin + " and is not sent to " +
                      options.source.origin() + "; set HF_ENDPOINT if it is meant for it");
    }
    return {options.folder, options.source,
            fetch::list_repository(options.source, options.http, options.retries,
                                   [&](const std::string& line) { progress.note(line); })};
}

int finish(const fetch::Options& options, const fetch::Outcome& outcome) {
    const int code = fetch::report(options, outcome);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
        throw Error(Code::write, "standard output could not be written", "check where it goes");
    return code;
}

int verify_only(const fetch::Options& options, fetch::Progress& progress) {
    const Clock::time_point start = Clock::now();
    std::error_code failure;
    if (!std::filesystem::is_directory(options.folder, failure))
        throw Error(Code::usage, "is not a folder", "give the folder to verify", {.path = options.folder});
    const FolderLock lock(options.folder, progress);
    bool damaged = false;
    auto before = fetch::Manifest::load(options.folder, damaged);
    if (damaged) progress.note("k3-fetch.json is damaged: the server is asked instead");
    if (before) check_same_repository(*before, options);
    const bool own = before && speaks_for(*before, options);
    fetch::Manifest manifest = own ? std::move(*before) : ask(options, progress);
    if (own) progress.note("comparing with its k3-fetch.json, commit " + manifest.listing().commit);
    if (!own && before) manifest.adopt(*before);
    if (fetch::is_release(options.source.repo) && !options.any_size)
        fetch::check_release(manifest.listing(), options.source.repo);
    const auto wanted = wanted_of(options, manifest.listing());
    fetch::Ledger ledger(manifest, fetch::Ledger::Keep::at_the_end);
    auto states = fetch::glance_at(manifest, wanted, fetch::Purpose::verify);
    fetch::read_unread(manifest, ledger, states, fetch::Purpose::verify, options.jobs, g_stop, progress);
    try {  // compared with another revision it stays what it was fetched as
        if (own || !before) ledger.save();
    } catch (const Error&) {  // a folder that may only be read can be verified all the same
    }
    return finish(options, {&manifest, &states, 0, std::chrono::duration<double>(Clock::now() - start).count()});
}

/// Fetches what is not good; returns the bytes that came.
std::uint64_t transfer(const fetch::Options& options, const fetch::Manifest& manifest, fetch::Ledger& ledger,
                       std::vector<fetch::FileState>& states, fetch::Progress& progress) {
    std::uint64_t bytes = 0, kept = 0;
    for (const fetch::FileState& state : states) {
        bytes += state.file->size;
        kept += state.good() ? state.file->size : state.kept;
        if (state.good()) fetch::PartFile::drop(manifest.local(*state.file));
    }
    fetch::require_space(options.folder, manifest, states);
    progress.note(std::to_string(states.size()) + " files, " + k3::drivers::show_bytes(bytes) + "; " +
                  k3::drivers::show_bytes(kept) + " are there, " + k3::drivers::show_bytes(bytes - kept) +
                  " to fetch by " + std::to_string(options.jobs) + " connections");
    const fetch::TransferOptions how{options.jobs, options.retries, options.piece, &options.http};
    fetch::Transfer work(manifest, ledger, states, how, g_stop, progress);
    work.run();
    ledger.save();
    return work.received();
}

int fetch_all(const fetch::Options& options, fetch::Progress& progress) {
    const Clock::time_point start = Clock::now();
    const Folder folder(options.folder);
    const FolderLock lock(options.folder, progress);
    bool damaged = false;
    const auto before = fetch::Manifest::load(options.folder, damaged);
    if (damaged) progress.note("k3-fetch.json is damaged: every file is read again");
    if (before) check_same_repository(*before, options);
    fetch::Manifest manifest = ask(options, progress);
    if (before) {
        say_what_moved(*before, manifest, progress);
        manifest.adopt(*before);
    }
    if (fetch::is_release(options.source.repo) && !options.any_size)
        fetch::check_release(manifest.listing(), options.source.repo);
    const auto wanted = wanted_of(options, manifest.listing());
    fetch::Ledger ledger(manifest, fetch::Ledger::Keep::as_it_goes);
    auto states = fetch::glance_at(manifest, wanted, fetch::Purpose::fetch);
    std::uint64_t received = 0;
    try {
        fetch::require_space(options.folder, manifest, states);  // before anything is made, removed or read
        ledger.save();
        // In a folder that no download made, a file stays until its own takes the place: it may be somebody's.
        if (before) fetch::remove_wrong(manifest, states, progress);
        fetch::read_unread(manifest, ledger, states, fetch::Purpose::fetch, options.jobs, g_stop, progress);
        received = transfer(options, manifest, ledger, states, progress);
    } catch (const Error& error) {
        std::string next = "what came is kept, go on with: " + fetch::command(options);
        for (const std::string& pattern : options.include) next += " --include " + k3::drivers::shell_word(pattern);
        if (error.code() != Code::interrupted) next = error.next() + "; " + next;
        throw Error(error.code(), error.message(), next, error.where());
    }
    return finish(options, {&manifest, &states, received, std::chrono::duration<double>(Clock::now() - start).count()});
}

int run(int argc, char** argv) {
    fetch::Options options;
    options.program = argc > 0 ? argv[0] : "";
    CLI::App app("Downloads and verifies a checkpoint.", "k3-fetch");
    fetch::declare(app, options);
    if (!k3::drivers::parse_command_line(app, argc, argv)) return k3::drivers::kSuccess;
    fetch::resolve(options);
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        throw Error(Code::internal, "libcurl cannot start", "check the installation of libcurl");
    catch_interrupts();
    options.http.stop = &g_stop;
    fetch::Progress progress(options.quiet);
    return options.verify_only ? verify_only(options, progress) : fetch_all(options, progress);
}

}  // namespace

int main(int argc, char** argv) {
    return k3::drivers::guarded_main("k3-fetch", [&] { return run(argc, argv); });
}
