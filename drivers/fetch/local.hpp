#ifndef K3_DRIVERS_FETCH_LOCAL_HPP
#define K3_DRIVERS_FETCH_LOCAL_HPP
// What of a listing is in the folder already, and whether it is right. A file of the right size is read whole once and
// its digest compared; the manifest remembers that, until size or time of the file change.
#include <sys/statvfs.h>

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

/// By size and by what the manifest remembers. Files to be read are `wrong_digest` with an empty `why`.
inline FileState glance(const Manifest& manifest, const RemoteFile& file, bool trust_marks) {
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
    if (!file.digest) return {&file, State::sized};
    return {&file, trust_marks && manifest.is_marked(file, *stamp) ? State::verified : State::wrong_digest};
}

/// Looks at every file of `wanted`. Errors: Code::read for a file that cannot be read, Code::interrupted.
inline std::vector<FileState> check_local(const Manifest& manifest, Ledger& ledger,
                                          const std::vector<const RemoteFile*>& wanted, From from, bool trust_marks,
                                          unsigned threads, const std::atomic<bool>& stop, Progress& progress) {
    std::vector<FileState> states;
    std::vector<std::size_t> unread;
    std::uint64_t bytes = 0;
    for (const RemoteFile* file : wanted) {
        states.push_back(glance(manifest, *file, trust_marks));
        if (states.back().state != State::wrong_digest) continue;
        unread.push_back(states.size() - 1);
        bytes += file->size;
    }
    if (unread.empty()) return states;
    progress.begin("checked", 0, bytes);
    progress.note("reading " + std::to_string(unread.size()) + " files, " + drivers::show_bytes(bytes) +
                  ", to compare digests");
    std::atomic<std::uint64_t> done{0};
    threads = std::min(threads, std::max(1U, std::thread::hardware_concurrency()));
    io::run_jobs(threads, unread.size(), [&](unsigned, std::size_t i) {
        FileState& state = states[unread[i]];
        const RemoteFile& file = *state.file;
        const std::string found = digest_of(manifest.local(file), file.digest.kind, from, stop, [&](std::uint64_t n) {
            done += n;
            progress.show(done, file.path);
        });
        if (found == file.digest.hex) {
            state.state = State::verified;
            ledger.mark(file);
        } else {
            state.why = wrong_digest_text(file.digest, found);
            ledger.unmark(file);
            progress.note(file.path + ": " + state.why);
        }
    });
    progress.end();
    return states;
}

/// Errors: Code::plan when the files to fetch do not fit on the disk. What a .part file has is not asked for again.
inline void require_space(const std::string& folder, const Manifest& manifest, const std::vector<FileState>& states) {
    std::uint64_t need = std::uint64_t{16} << 20;
    for (const FileState& state : states) {
        if (state.good()) continue;
        struct stat info {};
        std::uint64_t there = 0;
        if (::stat((manifest.local(*state.file) + kPartEnd).c_str(), &info) == 0)
            there = std::min(state.file->size, static_cast<std::uint64_t>(info.st_blocks) * 512);
        need += state.file->size - there;
    }
    struct statvfs disk {};
    if (::statvfs(folder.c_str(), &disk) != 0) io::PendingFile::fail(folder, "cannot be examined", errno);
    const std::uint64_t free_bytes = std::uint64_t{disk.f_bavail} * disk.f_frsize;
    if (free_bytes >= need) return;
    throw Error(Code::plan,
                "needs " + drivers::show_bytes(need) + " more (" + std::to_string(need) + " bytes), " +
                    drivers::show_bytes(free_bytes) + " are free",
                "free some space, or choose another disk", {.path = folder});
}

}  // namespace k3::fetch
#endif
