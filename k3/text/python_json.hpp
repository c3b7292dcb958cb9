#ifndef K3_TEXT_PYTHON_JSON_HPP
#define K3_TEXT_PYTHON_JSON_HPP
// JSON spelled and read as Python's json module does it: the model saw tool declarations and arguments in that
// spelling, and any other one gives other token ids.
//   written  non-ASCII kept, ", " and ": " or "," and ":", reals as repr() spells them (1e16 is 1e+16, 1.0 keeps its
//   .0) read     as JSONDecoder(strict=False).raw_decode: NaN and Infinity are numbers, control characters may stand in
//            strings, whitespace is space, tab, LF and CR, and a value ends where it ends, whatever follows
// Integers beyond 64 bits are reals in the Json types here; in a text they keep their spelling.
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "k3/text/utf8.hpp"

namespace k3::text {

/// With keys in the caller's order (io::Json sorts them, by code points, at every depth).
using OrderedJson = nlohmann::ordered_json;

enum class JsonKind : std::uint8_t { string, number, boolean, null, object, array };

/// "string", "number", ...: as in the type attribute of an argument.
constexpr std::string_view kind_name(JsonKind kind) noexcept {
    constexpr std::string_view kNames[] = {"string", "number", "boolean", "null", "object", "array"};
    return kNames[static_cast<std::size_t>(kind)];
}

enum class JsonSpacing : std::uint8_t { compact, spaced };

/// A JSON string literal. Requires UTF-8 for a valid result.
inline std::string json_quoted(std::string_view text) {
    constexpr std::string_view kHex = "0123456789abcdef", kPlain = "\"\\\b\f\n\r\t", kLetter = "\"\\bfnrt";
    std::string out = "\"";
    for (const char c : text) {
        if (const std::size_t at = kPlain.find(c); at != std::string_view::npos) {
            out += {'\\', kLetter[at]};
        } else if (static_cast<unsigned char>(c) < 0x20) {
            out.append("\\u00").append(
                {kHex[static_cast<std::size_t>(c) >> 4], kHex[static_cast<std::size_t>(c) & 15]});
        } else {
            out += c;
        }
    }
    return out += '"';
}

/// repr() of a float; NaN, Infinity and -Infinity as json.dumps writes them.
inline std::string print_real(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    char digits[64];
    const auto print = [&](std::chars_format format) {
        return std::string(digits, std::to_chars(digits, digits + sizeof digits, value, format).ptr);
    };
    std::string text = print(std::chars_format::scientific);
    const int exponent = std::stoi(text.substr(text.find('e') + 1));
    if (exponent < -4 || exponent >= 16) return text;
    text = print(std::chars_format::fixed);
    return text.find('.') == std::string::npos ? text + ".0" : text;
}

/// Requires a value without binary data.
template <class AnyJson>
std::string print_json(const AnyJson& value, JsonSpacing spacing) {
    const std::string_view comma = spacing == JsonSpacing::compact ? "," : ", ";
    const std::string_view colon = spacing == JsonSpacing::compact ? ":" : ": ";
    std::string out;
    switch (value.type()) {
        case AnyJson::value_t::object:
            for (auto at = value.begin(); at != value.end(); ++at) {
                out.append(out.empty() ? "" : comma).append(json_quoted(at.key())).append(colon);
                out += print_json(at.value(), spacing);
            }
            return "{" + out + "}";
        case AnyJson::value_t::array:
            for (const AnyJson& element : value) {
                out.append(out.empty() ? "" : comma);
                out += print_json(element, spacing);
            }
            return "[" + out + "]";
        case AnyJson::value_t::string: return json_quoted(value.template get_ref<const std::string&>());
        case AnyJson::value_t::number_float: return print_real(value.template get<double>());
        default: return value.dump();
    }
}

// --------------------------------------------------------------------------------------------------------------------

/// Follows one value in `text`, at any depth (no recursion: the depth is the writer's).
class JsonScanner {
  public:
    explicit JsonScanner(std::string_view text, std::size_t at = 0) : text_(text), at_(at) {}

    std::size_t at() const noexcept { return at_; }
    bool done() const noexcept { return at_ == text_.size(); }

    void skip_space() {
        while (!done() && std::string_view(" \t\n\r").find(text_[at_]) != std::string_view::npos) ++at_;
    }

    /// Steps over `word` if it stands here.
    bool take(std::string_view word) {
        if (text_.substr(at_, word.size()) != word) return false;
        at_ += word.size();
        return true;
    }

    /// Steps over a string literal; `decoded`, if given, is what it means. False, and nowhere in particular, if there
    /// is none. Half of a surrogate pair becomes U+FFFD, which is what the released tokenizer makes of it.
    bool string(std::string* decoded = nullptr) {
        if (!take("\"")) return false;
        while (!done()) {
            const char c = text_[at_++];
            if (c == '"') return true;
            if (c != '\\') {
                if (decoded != nullptr) *decoded += c;
            } else if (!escape(decoded)) {
                return false;
            }
        }
        return false;
    }

    /// Steps over one value that begins here (no space before it), and says what it is. Nothing if there is none.
    std::optional<JsonKind> value() {
        const std::optional<JsonKind> kind = begin();
        if (!kind) return std::nullopt;
        while (!open_.empty()) {  // after a value, or after the bracket that opened the innermost one
            skip_space();
            if (take(open_.back() == '{' ? "}" : "]")) {
                open_.pop_back();
                fresh_ = false;
                continue;
            }
            if (!fresh_ && !take(",")) return std::nullopt;
            fresh_ = false;
            skip_space();
            if (open_.back() == '{' && !key()) return std::nullopt;
            if (!begin()) return std::nullopt;
        }
        return kind;
    }

    /// Steps over `"key" :` and the space after it.
    bool key(std::string* decoded = nullptr) {
        if (!string(decoded)) return false;
        skip_space();
        if (!take(":")) return false;
        skip_space();
        return true;
    }

  private:
    // A scalar as a whole; of an object or array the bracket.
    std::optional<JsonKind> begin() {
        if (done()) return std::nullopt;
        if (text_[at_] == '"') return string() ? std::optional(JsonKind::string) : std::nullopt;
        if (text_[at_] == '{' || text_[at_] == '[') {
            open_ += text_[at_];
            fresh_ = true;
            return text_[at_++] == '{' ? JsonKind::object : JsonKind::array;
        }
        if (take("null")) return JsonKind::null;
        if (take("true") || take("false")) return JsonKind::boolean;
        if (take("NaN") || take("Infinity") || take("-Infinity")) return JsonKind::number;
        take("-");
        if (!take("0") && !digits()) return std::nullopt;
        const std::size_t whole = at_;  // "1." and "1e" are the number 1 and something else
        if (take(".") && !digits()) at_ = whole;
        const std::size_t mantissa = at_;
        if (take("e") || take("E")) {
            if (!take("+")) take("-");
            if (!digits()) at_ = mantissa;
        }
        return JsonKind::number;
    }

    bool digits() {
        const std::size_t from = at_;
        while (!done() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
        return at_ != from;
    }

    std::optional<std::uint32_t> four_hex() {
        std::uint32_t unit = 0;
        if (text_.size() - at_ < 4) return std::nullopt;
        const char* const end = text_.data() + at_ + 4;
        if (const auto hex = std::from_chars(end - 4, end, unit, 16); hex.ptr != end) return std::nullopt;
        at_ += 4;
        return unit;
    }

    bool escape(std::string* decoded) {
        constexpr std::string_view kLetter = "\"\\/bfnrt", kMeans = "\"\\/\b\f\n\r\t";
        if (done()) return false;
        const char c = text_[at_++];
        if (const std::size_t which = kLetter.find(c); which != std::string_view::npos) {
            if (decoded != nullptr) *decoded += kMeans[which];
            return true;
        }
        const auto unit = c == 'u' ? four_hex() : std::nullopt;
        if (!unit) return false;
        std::uint32_t scalar = *unit;
        if (scalar >= 0xD800 && scalar < 0xDC00) {
            const std::size_t after = at_;
            const auto low = take("\\u") ? four_hex() : std::nullopt;
            if (low && *low >= 0xDC00 && *low < 0xE000) {
                scalar = 0x10000 + ((scalar - 0xD800) << 10) + (*low - 0xDC00);
            } else {
                at_ = after;
            }
        }
        if (decoded == nullptr) return true;
        if (scalar >= 0xD800 && scalar < 0xE000) {
            decoded->append(kReplacement);
        } else {
            append_utf8(*decoded, scalar);
        }
        return true;
    }

    std::string_view text_;
    std::size_t at_;
    std::string open_{};  // brackets around this place
    bool fresh_ = false;  // the innermost one has just been opened
};

}  // namespace k3::text
#endif
