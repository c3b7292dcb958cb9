#ifndef K3_DRIVERS_EXIT_CODE_HPP
#define K3_DRIVERS_EXIT_CODE_HPP
// What a process returns, in one table, and the frame around every driver's main.
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "k3/core/error.hpp"

namespace k3::drivers {

enum ExitCode : int {
    kSuccess = 0,
    kFailed = 1,       // bind, trunk read, forward or numeric fault
    kRefused = 2,      // usage, config, plan, tokenizer, chat or state file
    kNotWritten = 3,   // a result could not be written
    kUnsound = 4,      // an expert failed to load
    kInterrupted = 5,  // after a completed step
};

constexpr int exit_code(Code code) noexcept {
    switch (code) {  // no default: a new Code must be placed here
        case Code::usage:
        case Code::config:
        case Code::tokenizer:
        case Code::chat:
        case Code::plan:
        case Code::state: return kRefused;
        case Code::checkpoint:
        case Code::tensor:
        case Code::read:
        case Code::numeric:
        case Code::internal: return kFailed;
        case Code::write: return kNotWritten;
        case Code::expert: return kUnsound;
        case Code::interrupted: return kInterrupted;
    }
    return kFailed;
}

/// Runs `body` (which returns an exit code) and turns what escapes it into one line "NAME: ..." on stderr and a code.
/// CLI11's own exceptions do not come here: see command_line.hpp.
template <class Body>
int guarded_main(const char* name, Body&& body) noexcept {
    try {
        return body();
    } catch (const Error& error) {
        std::fprintf(stderr, "%s: %s\n", name, error.what());
        return exit_code(error.code());
    } catch (const std::bad_alloc&) {
        std::fprintf(stderr, "%s: out of memory; free some memory or ask for less\n", name);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s: unexpected failure: %s; please report this\n", name, error.what());
    }
    return kFailed;
}

}  // namespace k3::drivers
#endif
