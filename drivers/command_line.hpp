#ifndef K3_DRIVERS_COMMAND_LINE_HPP
#define K3_DRIVERS_COMMAND_LINE_HPP
// From what CLI11 throws to what a driver does: go on, stop because --help or --version was printed, or refuse.
#include <utility>

#include <CLI/CLI.hpp>

#include "k3/core/error.hpp"

namespace k3::drivers {

/// Parses `words` (argc and argv, or a vector with the last word first: what CLI::App::parse takes).
/// False: --help or --version was asked for and has been printed to stdout; the driver ends with success.
/// Errors: Code::usage, with the App's name in the next step.
template <class... Words>
bool parse_command_line(CLI::App& app, Words&&... words) {
    try {
        app.parse(std::forward<Words>(words)...);
        return true;
    } catch (const CLI::Success& success) {
        app.exit(success);
        return false;
    } catch (const CLI::ParseError& error) {
        throw Error(Code::usage, error.what(), "see " + app.get_name() + " --help");
    }
}

}  // namespace k3::drivers
#endif
