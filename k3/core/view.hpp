#ifndef K3_CORE_VIEW_HPP
#define K3_CORE_VIEW_HPP
// Non-owning row-major matrix. A vector is one row.
#include <cstddef>
#include <type_traits>

#include "k3/core/check.hpp"

namespace k3::core {

template <class T>
struct MatView {
    T* data = nullptr;
    std::size_t rows = 0, cols = 0;
    std::size_t stride = 0;  // elements from one row to the next, >= cols

    K3_INLINE constexpr MatView() noexcept = default;
    K3_INLINE constexpr MatView(T* d, std::size_t r, std::size_t c) noexcept : data(d), rows(r), cols(c), stride(c) {}
    K3_INLINE constexpr MatView(T* d, std::size_t r, std::size_t c, std::size_t s) noexcept
        : data(d), rows(r), cols(c), stride(s) {}
    K3_INLINE constexpr T* row(std::size_t r) const noexcept { return data + r * stride; }
    K3_INLINE constexpr MatView row_range(std::size_t first, std::size_t count) const noexcept {
        return {data + first * stride, count, cols, stride};
    }
    K3_INLINE constexpr MatView col_range(std::size_t first, std::size_t count) const noexcept {
        return {data + first, rows, count, stride};
    }
    K3_INLINE constexpr operator MatView<const T>() const noexcept requires(!std::is_const_v<T>) {
        return {data, rows, cols, stride};
    }
};

}  // namespace k3::core
#endif
