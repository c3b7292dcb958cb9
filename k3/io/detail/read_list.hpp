#ifndef K3_IO_DETAIL_READ_LIST_HPP
#define K3_IO_DETAIL_READ_LIST_HPP
// Lists of Reads that are linked through the Reads themselves: nothing here allocates or fails. A chain is singly
// linked (`after`), for sorting a batch before anybody else sees it; a ReadList is doubly linked.
#include <cstddef>

#include "k3/io/detail/read.hpp"

namespace k3::io::detail {

/// File by file, in the order the files were opened; offsets rising.
inline bool goes_before(const Read& a, const Read& b) noexcept {
    const int fa = a.file->buffered_descriptor(), fb = b.file->buffered_descriptor();
    return fa != fb ? fa < fb : a.offset < b.offset;
}

/// Takes the first `count` (at least 1) Reads of the chain `rest` and returns them as a sorted chain; stable.
inline Read* sort_chain(Read*& rest, std::size_t count) noexcept {
    if (count == 1) {
        Read* const one = rest;
        rest = one->progress.after;
        one->progress.after = nullptr;
        return one;
    }
    Read* a = sort_chain(rest, count / 2);
    Read* b = sort_chain(rest, count - count / 2);
    Read *merged = nullptr, **end = &merged;
    while (a != nullptr || b != nullptr) {
        Read*& from = a == nullptr || (b != nullptr && goes_before(*b, *a)) ? b : a;
        Read* const next = from;
        from = next->progress.after;
        *end = next;
        end = &next->progress.after;
    }
    return merged;
}

class ReadList {
  public:
    Read* front() const noexcept { return first_; }

    void append(Read& read) noexcept {
        ReadProgress& p = read.progress;
        p.before = last_;
        p.after = nullptr;
        (last_ != nullptr ? last_->progress.after : first_) = &read;
        last_ = &read;
        p.listed = true;
    }
    void append_chain(Read* chain) noexcept {
        while (chain != nullptr) {
            Read* const next = chain->progress.after;
            append(*chain);
            chain = next;
        }
    }
    void unlink(Read& read) noexcept {
        ReadProgress& p = read.progress;
        (p.before != nullptr ? p.before->progress.after : first_) = p.after;
        (p.after != nullptr ? p.after->progress.before : last_) = p.before;
        p.before = p.after = nullptr;
        p.listed = false;
    }

  private:
    Read *first_ = nullptr, *last_ = nullptr;
};

}  // namespace k3::io::detail
#endif
