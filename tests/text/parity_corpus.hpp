#ifndef K3_TESTS_TEXT_PARITY_CORPUS_HPP
#define K3_TESTS_TEXT_PARITY_CORPUS_HPP
// The texts on which ids are compared with those of tiktoken, made from a seed, from parity_cases.json and from
// documents/: listed strings; every scalar value beside its neighbours; 10,000 random strings over all planes; whole
// documents in 16 languages and 8 notations, with LF and with CR LF; a mixture of them; pathological texts of up to
// 1 MiB; texts around the official cuts. parity_corpus.mjs makes the same for the oracle.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "k3/io/file.hpp"
#include "k3/text/utf8.hpp"

namespace k3::test {

/// 32-bit xorshift: what JavaScript's integers can do.
class Random32 {
  public:
    explicit Random32(std::uint32_t seed) : state_(seed) {}  // not 0
    std::uint32_t below(std::uint32_t n) {
        state_ ^= state_ << 13;
        state_ ^= state_ >> 17;
        state_ ^= state_ << 5;
        return state_ % n;
    }
    std::size_t index(std::size_t n) { return below(static_cast<std::uint32_t>(n)); }

  private:
    std::uint32_t state_;
};

class ParityCorpus {
  public:
    using Texts = std::vector<std::string>;

    /// `tests` is the directory tests/ of the repository.
    explicit ParityCorpus(const std::string& tests)
        : cases_(nlohmann::json::parse(io::File::read_text(tests + "/text/parity_cases.json"))),
          atoms_(cases_["atoms"].get<Texts>()) {
        std::vector<std::filesystem::path> paths;
        for (const auto& entry : std::filesystem::directory_iterator(tests + "/text/documents"))
            paths.push_back(entry.path());
        std::sort(paths.begin(), paths.end());
        for (const auto& path : paths)
            documents_.emplace_back(path.filename().string(), io::File::read_text(path.string()));
    }

    const nlohmann::json& cases() const { return cases_; }

    /// Calls use(name, texts) for every group, in order.
    template <class Use>
    void for_each_group(Use&& use) const {
        use(std::string("listed"), cases_["listed"].get<Texts>());
        sweep(use);
        Random32 random(0x9e3779b9);
        for (int group = 0; group < 100; ++group) {
            Texts texts(100);
            for (std::string& text : texts) text = random_text(random);
            use("random-" + std::to_string(group), texts);
        }
        for (const auto& [name, text] : documents_) use(name, Texts{text, replaced(text, "\n", "\r\n")});
        use(std::string("mixture"), Texts{mixture(1U << 18, 1)});
        use(std::string("letters"), Texts{letters()});
        for (const auto& row : cases_["long"]) {
            std::string text;
            for (std::size_t part = 1; part < row.size(); ++part) {
                const std::string unit = row[part][0];
                for (auto times = row[part][1].get<std::size_t>(); times > 0; --times) text += unit;
            }
            use(row[0].get<std::string>(), Texts{text});
        }
    }

    /// Runs of lines of all documents, with numbers, names and signs between them, until there are `size` bytes.
    std::string mixture(std::size_t size, std::uint32_t seed) const {
        std::vector<Texts> lines;
        for (const auto& [name, text] : documents_) {
            lines.emplace_back();
            for (std::size_t at = 0; at < text.size();) {
                const std::size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
                lines.back().push_back(text.substr(at, end - at));
                at = end;
            }
        }
        Random32 random(seed);
        std::string text;
        while (text.size() < size) {
            const Texts& document = lines[random.index(lines.size())];
            const std::size_t from = random.index(document.size());
            const std::size_t to = std::min(from + 1 + random.below(6), document.size());
            for (std::size_t i = from; i < to; ++i) text += document[i];
            const std::uint32_t kind = random.below(8);
            if (kind == 0) text += std::to_string(random.below(1000000000)) + ' ';
            if (kind == 1) {
                for (std::uint32_t n = 3 + random.below(10); n > 0; --n) {
                    const std::uint32_t first = random.below(8) == 0 ? 'A' : 'a';
                    text += static_cast<char>(first + random.below(26));
                }
            }
            if (kind == 2) {
                for (std::uint32_t n = 1 + random.below(6); n > 0; --n)
                    text::append_utf8(text, 0x4e00 + random.below(0x5200));
            }
        }
        return text;
    }

    /// The tokens of a rank file of the released size: all bytes, all pairs of bytes in shuffled order, then strings
    /// that occur in the documents. With every pair a token, two bytes that are wrongly in one piece are soon one
    /// token, and two that are wrongly apart no longer are: few mistakes leave all ids as they were.
    Texts made_ranks() const {
        Texts tokens;
        for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
        std::vector<std::uint32_t> pairs(65536);
        for (std::uint32_t i = 0; i < 65536; ++i) pairs[i] = i;
        Random32 random(12345);
        for (std::uint32_t i = 65535; i > 0; --i) std::swap(pairs[i], pairs[random.below(i + 1)]);
        for (const std::uint32_t pair : pairs)
            tokens.push_back({static_cast<char>(pair >> 8), static_cast<char>(pair & 255)});
        std::string all;
        for (const auto& [name, text] : documents_) all += text;
        std::unordered_set<std::string> seen;
        while (tokens.size() < 163584) {
            const std::uint32_t length = 3 + random.below(10);
            const std::size_t from = random.index(all.size() - length);
            if (seen.insert(all.substr(from, length)).second) tokens.push_back(all.substr(from, length));
        }
        return tokens;
    }

  private:
    static std::string replaced(std::string text, std::string_view from, std::string_view to) {
        for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
            text.replace(at, from.size(), to);
        return text;
    }

    /// Every scalar value in each template; of the empty and private planes the ends and every 257th.
    template <class Use>
    void sweep(Use&& use) const {
        const auto templates = cases_["templates"].get<Texts>();
        for (std::uint32_t first = 0; first < 0x110000; first += 4096) {
            Texts texts(templates.size());
            for (std::uint32_t scalar = first; scalar < first + 4096; ++scalar) {
                const std::uint32_t plane = scalar >> 16, inside = scalar & 0xffff;
                const bool empty = (plane >= 4 && plane <= 13) || plane >= 15;
                if (scalar >= 0xd800 && scalar < 0xe000) continue;
                if (empty && inside >= 256 && inside < 0xff00 && scalar % 257 != 0) continue;
                std::string bytes;
                text::append_utf8(bytes, scalar);
                for (std::size_t i = 0; i < templates.size(); ++i) texts[i] += replaced(templates[i], "\x01", bytes);
            }
            if (texts[0].empty()) continue;
            constexpr char kDigits[] = "0123456789abcdef";
            std::string name;
            for (std::uint32_t rest = first; rest > 0 || name.empty(); rest /= 16)
                name.insert(0, 1, kDigits[rest % 16]);
            use("scalars-" + name, texts);
        }
    }

    static std::string random_scalar(Random32& random) {
        static constexpr std::uint32_t kLimits[] = {0x80, 0x800, 0x3000, 0x10000, 0x110000};
        for (;;) {
            const std::uint32_t scalar = random.below(kLimits[random.below(5)]);
            if (scalar >= 0xd800 && scalar <= 0xdfff) continue;
            std::string bytes;
            text::append_utf8(bytes, scalar);
            return bytes;
        }
    }

    std::string random_text(Random32& random) const {
        std::string text, last = " ";
        for (std::uint32_t n = 1 + random.below(24); n > 0; --n) {
            const std::uint32_t kind = random.below(8);
            if (kind < 3) {
                last = random_scalar(random);
            } else if (kind == 3) {
                const std::string unit = last;
                for (std::uint32_t times = random.below(3); times > 0; --times) last += unit;
            } else if (kind == 4) {
                last.clear();
                text::append_utf8(last, 0x4e00 + random.below(0x5200));
            } else {
                last = atoms_[random.index(atoms_.size())];
            }
            text += last;
            if (last.size() > 64) last = " ";
        }
        return text;
    }

    static std::string letters() {
        Random32 random(7);
        std::string text(1U << 18, ' ');
        for (char& c : text) c = static_cast<char>('a' + random.below(26));
        return text;
    }

    nlohmann::json cases_;
    Texts atoms_;
    std::vector<std::pair<std::string, std::string>> documents_;
};

}  // namespace k3::test
#endif
