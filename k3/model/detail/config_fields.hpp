#ifndef K3_MODEL_DETAIL_CONFIG_FIELDS_HPP
#define K3_MODEL_DETAIL_CONFIG_FIELDS_HPP
// Reads fields out of a parsed config and collects what is wrong with them, so that one run reports everything.
// A getter that finds a problem returns a placeholder; the caller throws before anyone sees it.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "k3/core/error.hpp"
#include "k3/io/json_text.hpp"

namespace k3::model::detail {

using io::Json;
using io::one_line;
using io::shown;

/// An object in which a field may stand, and how paths into it begin ("text_config.").
struct Scope {
    const Json* object;
    std::string prefix;
};
using Scopes = std::vector<Scope>;
using Names = std::initializer_list<const char*>;

enum class Need : std::uint8_t { required, optional };
enum class Sign : std::uint8_t { positive, negative };

class ConfigFields {
  public:
    struct Found {
        const Json* value = nullptr;
        std::string path;
    };

    void problem(std::string text) { problems_.push_back(std::move(text)); }

    /// The field under any of its names in any of the scopes. Found twice with different values is a problem.
    /// Not found: value is null, and path is where it should have been; a problem only if it is required.
    Found find(const Scopes& scopes, Names names, Need need = Need::required) {
        Found first;
        for (const Scope& scope : scopes) {
            for (const char* name : names) {
                const auto place = scope.object->find(name);
                if (place == scope.object->end()) continue;
                const std::string path = scope.prefix + name;
                if (first.value == nullptr) {
                    first = {&*place, path};
                } else if (*first.value != *place) {
                    problem(first.path + " is " + shown(*first.value) + " but " + path + " is " + shown(*place));
                }
            }
        }
        if (first.value != nullptr) return first;
        first.path = scopes.front().prefix + *names.begin();
        if (need == Need::required) problem(first.path + " is missing");
        return first;
    }

    /// A JSON integer in [low, high]: 93.0 and "93" are none. Returns 0 after a problem, and whoever compares other
    /// fields with it leaves that out then: one fault, one line.
    std::size_t integer(const Scopes& scopes, Names names, std::uint64_t low, std::uint64_t high) {
        const Found field = find(scopes, names);
        return field.value == nullptr ? 0 : integer(field, low, high);
    }
    std::size_t integer(const Found& field, std::uint64_t low, std::uint64_t high) {
        const std::string range = std::to_string(low) + ".." + std::to_string(high);
        if (!field.value->is_number_integer()) {
            problem(field.path + " must be an integer, is " + shown(*field.value));
        } else if (!field.value->is_number_unsigned() || field.value->get<std::uint64_t>() < low ||
                   field.value->get<std::uint64_t>() > high) {
            problem(field.path + " is " + shown(*field.value) + ", outside " + range);
        } else {
            return field.value->get<std::uint64_t>();
        }
        return 0;
    }

    /// A number of the given sign whose size is plausible; integers are numbers too.
    double real(const Scopes& scopes, Names names, Sign sign) {
        const Found field = find(scopes, names);
        return field.value == nullptr ? 1.0 : real(field, sign);
    }
    double real(const Found& field, Sign sign) {
        constexpr double kSmallest = 1e-30, kLargest = 1e30;  // far from where float32 arithmetic loses its meaning
        if (!field.value->is_number()) {
            problem(field.path + " must be a number, is " + shown(*field.value));
            return 1.0;
        }
        const double value = field.value->get<double>();
        if (sign == Sign::positive ? !(value > 0) : !(value < 0)) {
            problem(field.path + " must be " + (sign == Sign::positive ? "positive" : "negative") + ", is " +
                    shown(*field.value));
        } else if (std::fabs(value) < kSmallest || std::fabs(value) > kLargest) {
            problem(field.path + " is " + shown(*field.value) + ", which no float32 computation survives");
        }
        return value;
    }

    bool flag(const Scopes& scopes, Names names) {
        const Found field = find(scopes, names);
        if (field.value == nullptr) return false;
        if (!field.value->is_boolean()) {
            problem(field.path + " must be true or false, is " + shown(*field.value));
            return false;
        }
        return field.value->get<bool>();
    }

    /// A field with only one supported value, of exactly that type.
    void expect(const Scopes& scopes, Names names, const Json& only, Need need = Need::required) {
        const Found field = find(scopes, names, need);
        if (field.value == nullptr) return;
        const bool same_type =
            field.value->type() == only.type() || (field.value->is_number_integer() && only.is_number_integer());
        if (!same_type || *field.value != only) {
            problem(field.path + " is " + shown(*field.value) + "; only " + shown(only) + " is supported");
        }
    }

    /// Errors: Code::config with everything collected so far, if there is anything.
    void throw_if_any(const std::string& file) const {
        if (problems_.empty()) return;
        std::string text = std::to_string(problems_.size()) + (problems_.size() == 1 ? " problem: " : " problems: ");
        for (std::size_t i = 0; i < problems_.size(); ++i) text += (i == 0 ? "" : "; ") + problems_[i];
        throw Error(Code::config, std::move(text), "use the config.json of the released checkpoint", {.path = file});
    }

  private:
    std::vector<std::string> problems_;
};

}  // namespace k3::model::detail
#endif
