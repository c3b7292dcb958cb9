#ifndef K3_DRIVERS_NEXT_COMMAND_HPP
#define K3_DRIVERS_NEXT_COMMAND_HPP
// Commands that a program prints for its user to run next.
#include <cstddef>
#include <string>
#include <string_view>

namespace k3::drivers {

/// A word of a command line as a shell takes it: as it is, or in single quotes.
inline std::string shell_word(const std::string& text) {
    constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=,:+@%";
    if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
    std::string quoted = "'";
    for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return quoted + "'";
}

/// Another program of the project as the user can type it: where this one, argv[0] `program`, was found.
inline std::string sibling(const std::string& program, const std::string& name) {
    const std::size_t slash = program.rfind('/');
    return slash == std::string::npos ? name : shell_word(program.substr(0, slash + 1) + name);
}

}  // namespace k3::drivers
#endif
