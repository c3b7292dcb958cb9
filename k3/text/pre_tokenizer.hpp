#ifndef K3_TEXT_PRE_TOKENIZER_HPP
#define K3_TEXT_PRE_TOKENIZER_HPP
// Cuts text into the pieces that BPE works on, with the released pattern (docs/FORMATS.md) run by PCRE2.
//
// The released pattern is written for another engine (fancy-regex). What changes for PCRE2, and why:
//   [X&&[^\p{Han}]]  PCRE2 10.42 has no class intersection. "X minus Han" is the complement of "not X, or Han", and the
//                    complement of categories is the list of all others: one class, so a run of it is a simple loop. A
//                    look-ahead per character would be a group and grow the JIT stack with the length of the run.
//   \p{Han}          means Script_Extensions in PCRE2 since 10.40 (288 characters more); \p{sc:Han} is the script.
//   \s               PCRE2's also holds U+180E. The 25 White_Space characters are U+0009-U+000D, U+0085 and category Z.
//   (?i:'s)          also matches U+017F (long s) in both engines; U+212A has no partner here.
// Pieces that can be told from ASCII alone do not reach PCRE2: detail/ascii_piece.hpp.
// Which characters a category holds is pinned to Unicode 16: see unicode_pin.hpp.
#ifndef PCRE2_CODE_UNIT_WIDTH
#define PCRE2_CODE_UNIT_WIDTH 8
#endif
#include <pcre2.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "k3/core/error.hpp"
#include "k3/text/detail/ascii_piece.hpp"
#include "k3/text/unicode_pin.hpp"

namespace k3::text {

#define K3_TEXT_SPACE R"(\x09-\x0D\x{85}\p{Z})"
#define K3_TEXT_UPPER R"([^\p{Ll}\p{N}\p{P}\p{S}\p{Z}\p{C}\p{sc:Han}])"        // Lu Lt Lm Lo M minus Han
#define K3_TEXT_LOWER R"([^\p{Lu}\p{Lt}\p{N}\p{P}\p{S}\p{Z}\p{C}\p{sc:Han}])"  // Ll Lm Lo M minus Han
#define K3_TEXT_CONTRACTION R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"

/// The released pattern as PCRE2 runs it. Every character starts some alternative, so matches tile the text.
inline constexpr std::string_view kPattern =                                          //
    R"([\p{sc:Han}]+)"                                                                //
    R"(|[^\r\n\p{L}\p{N}]?)" K3_TEXT_UPPER "*" K3_TEXT_LOWER "+" K3_TEXT_CONTRACTION  //
    R"(|[^\r\n\p{L}\p{N}]?)" K3_TEXT_UPPER "+" K3_TEXT_LOWER "*" K3_TEXT_CONTRACTION  //
    R"(|\p{N}{1,3})"                                                                  //
    R"(| ?[^)" K3_TEXT_SPACE R"(\p{L}\p{N}]+[\r\n]*)"                                 //
    "|[" K3_TEXT_SPACE R"(]*[\r\n]+)"                                                 //
    "|[" K3_TEXT_SPACE "]+(?![^" K3_TEXT_SPACE
    "])"  //
    "|[" K3_TEXT_SPACE "]+";

#undef K3_TEXT_SPACE
#undef K3_TEXT_UPPER
#undef K3_TEXT_LOWER
#undef K3_TEXT_CONTRACTION

class PreTokenizer {
  public:
    /// Compiles the pattern. Errors: Code::tokenizer if this PCRE2 is older than 10.40 or has no Unicode.
    PreTokenizer();

    /// What one caller needs while matching; not shared between threads.
    class Scratch {
      public:
        explicit Scratch(const PreTokenizer& tokenizer);

      private:
        friend class PreTokenizer;
        struct Free {
            void operator()(pcre2_match_data_8* p) const noexcept { pcre2_match_data_free_8(p); }
            void operator()(pcre2_match_context_8* p) const noexcept { pcre2_match_context_free_8(p); }
            void operator()(pcre2_jit_stack_8* p) const noexcept { pcre2_jit_stack_free_8(p); }
        };
        std::unique_ptr<pcre2_match_data_8, Free> match_;
        std::unique_ptr<pcre2_jit_stack_8, Free> stack_;
        std::unique_ptr<pcre2_match_context_8, Free> context_;
        std::string pinned_;
    };

    /// Calls use(piece) for each piece of `segment`, in order; together they are the segment. The segment's end is the
    /// end for the pattern's look-ahead. Linear time: within a piece no alternative looks at a character more than a
    /// few times. Requires valid UTF-8 (checked by the tokenizer; PCRE2's own check would be quadratic). Threads:
    /// const, re-entrant. Errors: Code::internal if PCRE2 reports a limit or an error.
    template <class Use>
    void split(std::string_view segment, Scratch& scratch, Use&& use) const {
        const std::string_view subject = detail::pin_unicode(segment, scratch.pinned_);
        for (std::size_t at = 0; at < segment.size();) {
            std::size_t end = detail::AsciiPiece::end(segment, at);
            if (end == 0) end = match_end(subject, at, scratch);
            use(segment.substr(at, end - at));
            at = end;
        }
    }

  private:
    struct FreeCode {
        void operator()(pcre2_code_8* code) const noexcept { pcre2_code_free_8(code); }
    };
    static std::string message_of(int error) {
        std::array<unsigned char, 256> text{};
        pcre2_get_error_message_8(error, text.data(), text.size());
        return reinterpret_cast<const char*>(text.data());
    }
    std::size_t match_end(std::string_view subject, std::size_t at, Scratch& scratch) const;

    std::unique_ptr<pcre2_code_8, FreeCode> code_;
};

// --------------------------------------------------------------------------------------------------------------------

inline PreTokenizer::PreTokenizer() {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(kPattern.data()), kPattern.size(),
                                PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &offset, nullptr));
    if (!code_) {
        throw Error(Code::tokenizer, "PCRE2 cannot compile the tokenizer's pattern: " + message_of(error),
                    "install PCRE2 10.40 or newer with Unicode support");
    }
    // Without JIT (a platform that has none, or forbids executable memory) the interpreter finds the same matches,
    // slower.
    pcre2_jit_compile_8(code_.get(), PCRE2_JIT_COMPLETE);
}

inline PreTokenizer::Scratch::Scratch(const PreTokenizer& tokenizer)
    : match_(pcre2_match_data_create_from_pattern_8(tokenizer.code_.get(), nullptr)),
      stack_(pcre2_jit_stack_create_8(std::size_t{32} << 10, std::size_t{8} << 20, nullptr)),
      context_(pcre2_match_context_create_8(nullptr)) {
    // stack_ may be null where there is no JIT; assigning it is then harmless. The pattern repeats single classes only,
    // so the stack does not grow with the text; 8 MiB (reserved, not committed) is far more than it can use.
    if (!match_ || !context_) {
        throw Error(Code::internal, "PCRE2 cannot allocate memory for matching", "free some memory and try again");
    }
    pcre2_jit_stack_assign_8(context_.get(), nullptr, stack_.get());
    // The default limits count backtracks, a handful per character here: long whitespace or upper-case runs would meet
    // them.
    pcre2_set_match_limit_8(context_.get(), 0xFFFFFFFFu);
}

inline std::size_t PreTokenizer::match_end(std::string_view subject, std::size_t at, Scratch& scratch) const {
    const int found = pcre2_match_8(code_.get(), reinterpret_cast<PCRE2_SPTR8>(subject.data()), subject.size(), at,
                                    PCRE2_NO_UTF_CHECK, scratch.match_.get(), scratch.context_.get());
    const std::size_t end = found > 0 ? pcre2_get_ovector_pointer_8(scratch.match_.get())[1] : at;
    if (end <= at) {
        throw Error(Code::internal,
                    "the tokenizer's pattern failed at byte " + std::to_string(at) + " of a segment of " +
                        std::to_string(subject.size()) + ": " + (found < 0 ? message_of(found) : "empty match"),
                    "please report this with the text");
    }
    return end;
}

}  // namespace k3::text
#endif
