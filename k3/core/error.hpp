#ifndef K3_CORE_ERROR_HPP
#define K3_CORE_ERROR_HPP
// The one exception of the library: bad input (a file, a configuration, a budget, an option). It says what is wrong,
// where, and what to do next. Kernels and layers never throw; they return core::Fault (fault.hpp).
// Not for arch units: this header brings std::string.
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>

namespace k3 {

/// What kind of bad input an Error reports. Drivers map these to exit codes in one table (drivers/exit_code.hpp).
enum class Code : std::uint8_t {
    usage,        ///< an option or argument is wrong
    config,       ///< config.json is missing, malformed, contradictory or asks for something unsupported
    tokenizer,    ///< a tokenizer file is missing or malformed, or text cannot be encoded
    chat,         ///< a conversation, a chat history or a generated reply breaks the chat format
    plan,         ///< the run does not fit in memory, or a budget contradicts itself
    state,        ///< a saved state does not belong to this model
    checkpoint,   ///< a shard is missing, truncated, malformed or is not a safetensors file
    tensor,       ///< a tensor is missing, duplicated, or has another shape or dtype than the config asks for
    read,         ///< the operating system failed a read
    write,        ///< a result could not be written
    numeric,      ///< NaN where a number is needed (router, argmax)
    expert,       ///< a routed expert failed to load
    interrupted,  ///< the user asked to stop
    internal,     ///< a broken promise inside k3: please report
};

/// Where an Error was found. Empty parts are left out of the message.
struct Where {
    std::string path{};
    std::string tensor{};
    std::optional<std::uint64_t> offset{};  // bytes from the start of `path`
};

/// Thrown for bad input. what() is one line: "path, tensor, offset N: message; next step".
class Error : public std::exception {
  public:
    /// `next` says what the user can do now; it ends the line. Every throw site must have an answer to that.
    Error(Code code, std::string message, std::string next, Where where = {})
        : code_(code), message_(std::move(message)), next_(std::move(next)), where_(std::move(where)) {
        std::string place = where_.path;
        const auto add = [&place](const std::string& part) {
            if (!place.empty()) place += ", ";
            place += part;
        };
        if (!where_.tensor.empty()) add("tensor " + where_.tensor);
        if (where_.offset) add("offset " + std::to_string(*where_.offset));
        line_ = place.empty() ? message_ : place + ": " + message_;
        if (!next_.empty()) line_ += "; " + next_;
    }

    const char* what() const noexcept override { return line_.c_str(); }
    Code code() const noexcept { return code_; }
    const std::string& message() const noexcept { return message_; }
    const std::string& next() const noexcept { return next_; }
    const Where& where() const noexcept { return where_; }

  private:
    Code code_;
    std::string message_, next_;
    Where where_;
    std::string line_;
};

}  // namespace k3
#endif
