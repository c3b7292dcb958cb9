#ifndef K3_IO_JSON_TEXT_HPP
#define K3_IO_JSON_TEXT_HPP
// JSON text to values, with every object's keys unique. The usual parsers keep the last of two equal keys, which turns
// a config that says two things into one that says either.
#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "k3/core/error.hpp"
#include "k3/io/guess.hpp"

namespace k3::io {

using Json = nlohmann::json;

/// One line, whatever was in the file: control bytes become spaces, long text is cut.
inline std::string one_line(std::string text, std::size_t longest = 200) {
    if (text.size() > longest) text = text.substr(0, longest) + "...";
    for (char& c : text) {
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
    }
    return text;
}

/// A value for a message: 93.5, "93", null, [4,8,12.. cut short.
inline std::string shown(const Json& value) {
    return one_line(value.dump(-1, ' ', false, Json::error_handler_t::replace), 60);
}

/// Follows the parser to know where it is and to notice a key that was already there.
class KeyWatch {
  public:
    static constexpr std::size_t kDeepest = 64;
    struct TooDeep {};

    bool operator()(int, Json::parse_event_t event, Json& value) {
        switch (event) {
            case Json::parse_event_t::object_start:
            case Json::parse_event_t::array_start:
                // The parser does not recurse, but printing and comparing what it made would.
                if (levels_.size() == kDeepest) throw TooDeep{};
                levels_.emplace_back();
                break;
            case Json::parse_event_t::object_end:
            case Json::parse_event_t::array_end: levels_.pop_back(); break;
            case Json::parse_event_t::key:
                levels_.back().key = value.get_ref<const std::string&>();
                if (!levels_.back().seen.insert(levels_.back().key).second) twins_.push_back(path());
                break;
            case Json::parse_event_t::value: break;
        }
        return true;
    }

    /// "text_config.linear_attn_config.num_heads"
    std::string path() const {
        std::string text;
        for (const Level& level : levels_) {
            if (level.key.empty()) continue;
            if (!text.empty()) text += '.';
            text += level.key;
        }
        return one_line(text);
    }
    const std::vector<std::string>& twins() const noexcept { return twins_; }

  private:
    struct Level {
        std::string key;
        std::set<std::string> seen;
    };
    std::vector<Level> levels_;
    std::vector<std::string> twins_;
};

/// The JSON object in `text`, which is all of `file`. Errors, all with `code`: malformed text (with line and key, or
/// with what the file is instead), a number outside the range of a double, a key that is there twice (all such keys),
/// anything but an object at the top.
inline Json parse_json(std::string_view text, Code code, const std::string& file) {
    const auto refuse = [&](std::string message, std::string_view next = "restore the file of the checkpoint") {
        throw Error(code, std::move(message), std::string(next), {.path = file});
    };
    KeyWatch watch;
    Json root;
    try {
        root = Json::parse(text.begin(), text.end(), [&watch](int depth, Json::parse_event_t event, Json& value) {
            return watch(depth, event, value);
        });
    } catch (const Json::exception& error) {
        const auto instead = guess(text);
        if (instead && text[text.find_first_not_of(" \t\r\n")] != '{')
            refuse("is not JSON: it is " + std::string(instead->what), instead->next);
        std::string why = error.what();
        why.erase(0, why.find("] ") == std::string::npos ? 0 : why.find("] ") + 2);
        const std::string place = watch.path();
        const bool syntax = dynamic_cast<const Json::parse_error*>(&error) != nullptr;
        refuse((syntax ? "is not JSON: " : "") + (place.empty() ? std::string() : "at " + place + ": ") +
               one_line(why));
    } catch (const KeyWatch::TooDeep&) {
        refuse("at " + watch.path() + ": nested more than " + std::to_string(KeyWatch::kDeepest) + " deep");
    }
    if (!watch.twins().empty()) {
        std::string list;
        for (const std::string& twin : watch.twins()) list += (list.empty() ? "" : ", ") + twin;
        refuse("these keys are there twice: " + one_line(list, 1000));
    }
    if (!root.is_object()) refuse("is not a JSON object");
    return root;
}

}  // namespace k3::io
#endif
