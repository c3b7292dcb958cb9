#ifndef K3_DRIVERS_FETCH_DIGEST_HPP
#define K3_DRIVERS_FETCH_DIGEST_HPP
// What a hub says about the bytes of a file, and the same of a file on disk: the sha256 of a large file, or the id git
// gives to a small one, the sha1 of "blob SIZE", a zero byte and the content. The arithmetic is OpenSSL's.
#include <fcntl.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "k3/core/error.hpp"
#include "k3/io/file.hpp"

namespace k3::fetch {

/// Digest of a file: `kind` is "sha256", "git-sha1", or empty where the server offers none.
struct Digest {
    std::string kind{}, hex{};

    explicit operator bool() const noexcept { return !kind.empty(); }
    bool operator==(const Digest&) const = default;
    std::string text() const { return kind.empty() ? "none" : kind + ":" + hex; }
};

inline bool is_hex(std::string_view text, std::size_t length) noexcept {
    return text.size() == length &&
           std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

/// Not thread-safe.
class Hasher {
  public:
    /// For a file of `size` bytes. Errors: Code::internal when OpenSSL refuses.
    Hasher(const std::string& kind, std::uint64_t size) : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
        const bool sha256 = kind == "sha256";
        require(context_ && EVP_DigestInit_ex(context_.get(), sha256 ? EVP_sha256() : EVP_sha1(), nullptr) == 1);
        if (sha256) return;
        const std::string head = "blob " + std::to_string(size);
        add(std::as_bytes(std::span(head.c_str(), head.size() + 1)));
    }

    void add(std::span<const std::byte> bytes) {
        require(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
    }

    std::string hex() {
        std::array<unsigned char, EVP_MAX_MD_SIZE> raw{};
        unsigned length = 0;
        require(EVP_DigestFinal_ex(context_.get(), raw.data(), &length) == 1);
        std::string text;
        for (unsigned i = 0; i < length; ++i) {
            text += "0123456789abcdef"[raw[i] >> 4];
            text += "0123456789abcdef"[raw[i] & 15];
        }
        return text;
    }

  private:
    static void require(bool done) {
        if (!done) throw Error(Code::internal, "OpenSSL cannot compute a digest", "check the installation of OpenSSL");
    }
    std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

enum class From { cache, disk };

/// Digest of the file at `path` as lower-case hex. From::disk reads past what the page cache remembers. `tick` gets the
/// bytes of each step. Errors: Code::read; Code::interrupted once `stop` is set.
inline std::string digest_of(const std::string& path, const std::string& kind, From from, const std::atomic<bool>& stop,
                             const std::function<void(std::uint64_t)>& tick) {
    const io::File file = io::File::open(path);
    Hasher hasher(kind, file.size());
    if (from == From::disk) ::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED);
    ::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_SEQUENTIAL);
    std::vector<std::byte> block(std::size_t{4} << 20);
    for (std::uint64_t at = 0; at < file.size();) {
        if (stop) throw Error(Code::interrupted, "interrupted", "run it again");
        const std::size_t count = static_cast<std::size_t>(std::min<std::uint64_t>(block.size(), file.size() - at));
        file.read(at, std::span(block).first(count));
        hasher.add(std::span(block).first(count));
        // A checkpoint would push out everything else that is cached.
        ::posix_fadvise(file.descriptor(), static_cast<off_t>(at), static_cast<off_t>(count), POSIX_FADV_DONTNEED);
        at += count;
        tick(count);
    }
    return hasher.hex();
}

}  // namespace k3::fetch
#endif
