#ifndef K3_TESTS_FUZZ_MUTATE_HPP
#define K3_TESTS_FUZZ_MUTATE_HPP
// Fuzzing without a fuzzer's run time: valid inputs, changed by a few seeded random edits, a fixed number of times. The
// same inputs on every machine and in every run, so that a failure is repeated by its number. No coverage feedback: the
// edits know words of the format instead (the dictionary).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "k3/core/error.hpp"
#include "support/doctest.hpp"

namespace k3::tests {

/// splitmix64.
class FuzzRandom {
  public:
    explicit FuzzRandom(std::uint64_t seed) : state_(seed) {}
    std::uint64_t next() {
        std::uint64_t z = state_ += 0x9e3779b97f4a7c15U;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
        return z ^ (z >> 31);
    }
    std::size_t below(std::size_t n) { return static_cast<std::size_t>(next() % n); }  // n >= 1

  private:
    std::uint64_t state_;
};

/// A copy of bytes in a block of its own of exactly that size: AddressSanitizer sees a read one byte before or after.
class ExactBytes {
  public:
    explicit ExactBytes(std::string_view bytes) : size_(bytes.size()), data_(new char[bytes.size()]) {
        std::copy(bytes.begin(), bytes.end(), data_.get());
    }
    std::string_view view() const { return {data_.get(), size_}; }

  private:
    std::size_t size_;
    std::unique_ptr<char[]> data_;
};

using Words = std::vector<std::string>;

/// One edit at a random place.
inline void edit(std::string& bytes, const Words& dictionary, FuzzRandom& random) {
    // Ends are likelier than other places: what comes before the first or after the last is a kind of damage of its
    // own.
    const std::size_t where = random.below(16);
    const std::size_t at = where == 0 ? 0 : where < 3 ? bytes.size() : random.below(bytes.size() + 1);
    const std::size_t left = bytes.size() - at;
    const std::size_t run = std::min(left, std::size_t{1} + random.below(std::size_t{1} << random.below(7)));
    static constexpr char kBytes[] = "\x00\x01\x7f\x80\xbf\xc0\xe0\xf0\xf4\xff \"\\{}[],:\n\r0-9.eE";
    const auto any_byte = [&] { return kBytes[random.below(sizeof kBytes - 1)]; };
    static const Words kNumbers = {"0",
                                   "-1",
                                   "1",
                                   "2",
                                   "255",
                                   "256",
                                   "4294967295",
                                   "4294967296",
                                   "9223372036854775807",
                                   "9223372036854775808",
                                   "18446744073709551615",
                                   "18446744073709551616",
                                   "1e999",
                                   "-0",
                                   "0.5",
                                   "1e-400",
                                   "99999999999999999999999999"};
    switch (random.below(10)) {
        case 0:
            if (left != 0) bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8)));
            break;
        case 1:
            if (left != 0) bytes[at] = any_byte();
            break;
        case 2: bytes.insert(at, 1, any_byte()); break;
        case 3: bytes.erase(at, run); break;
        case 4: {  // a piece again, somewhere
            const std::string piece = bytes.substr(at, run);
            bytes.insert(random.below(bytes.size() + 1), piece);
            break;
        }
        case 5: bytes.resize(at); break;  // the end is missing
        case 6:
            if (!dictionary.empty()) bytes.insert(at, dictionary[random.below(dictionary.size())]);
            break;
        case 7: {  // a word of the dictionary becomes another one
            if (dictionary.empty()) break;
            const std::string& word = dictionary[random.below(dictionary.size())];
            const std::size_t place = std::min(bytes.find(word, at), bytes.find(word));
            if (place != std::string::npos)
                bytes.replace(place, word.size(), dictionary[random.below(dictionary.size())]);
            break;
        }
        case 8: {  // the next number becomes another one
            const std::size_t place = bytes.find_first_of("0123456789", at);
            if (place == std::string::npos) break;
            const std::size_t end = std::min(bytes.find_first_not_of("0123456789.", place), bytes.size());
            const bool small = random.below(2) == 0;
            bytes.replace(place, end - place,
                          small ? std::to_string(random.below(100)) : kNumbers[random.below(kNumbers.size())]);
            break;
        }
        default: bytes.insert(at, std::size_t{1} << random.below(9), at == 0 ? '[' : bytes[at - 1]); break;
    }
}

/// What became of the inputs.
struct FuzzCount {
    std::size_t taken = 0, refused = 0;
    std::set<std::string> reasons{};  // first words of the refusals: how far into the reader the inputs got
};

/// K3_FUZZ_SCALE=100 tries a hundred times as many inputs: by hand, after a change to a reader.
inline std::size_t fuzz_scale() {
    const char* const text = std::getenv("K3_FUZZ_SCALE");
    return text == nullptr ? 1 : static_cast<std::size_t>(std::max(1L, std::strtol(text, nullptr, 10)));
}

/// Calls use(bytes) with each seed as it is, then `rounds` times with a seed that has been edited 1 to 6 times.
/// Fails unless every call returns or throws k3::Error with one line and a next step, and every seed is taken.
template <class Use>
FuzzCount fuzz(const Words& seeds, const Words& dictionary, std::size_t rounds, Use&& use) {
    FuzzCount count;
    rounds *= fuzz_scale();
    for (std::size_t round = 0; round < seeds.size() + rounds; ++round) {
        const bool seed = round < seeds.size();
        FuzzRandom random(round);
        std::string bytes = seeds[seed ? round : random.below(seeds.size())];
        if (!seed)
            for (std::size_t edits = 1 + random.below(6); edits > 0; --edits) edit(bytes, dictionary, random);
        const ExactBytes exact(bytes);
        std::string problem;
        try {
            use(exact.view());
            ++count.taken;
        } catch (const Error& error) {
            ++count.refused;
            const std::string line = error.what();
            count.reasons.insert(error.message().substr(0, 24));
            if (seed) problem = "a valid input is refused: " + line;
            if (std::any_of(line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }))
                problem = "a line break or another control character: " + line;
            if (error.message().empty() || error.next().empty()) problem = "no message or no next step: " + line;
        } catch (const std::exception& error) {
            problem = std::string("another exception: ") + error.what();
        } catch (...) {
            problem = "something that is no exception";
        }
        if (problem.empty()) continue;
        INFO("round ", round, ", ", bytes.size(), " bytes");
        FAIL_CHECK(problem);
    }
    return count;
}

}  // namespace k3::tests
#endif
