#ifndef K3_DRIVERS_INSPECT_QUANT_STUDY_HPP
#define K3_DRIVERS_INSPECT_QUANT_STUDY_HPP
// What the trunk would lose in int8 and int4, row by row: for a row w and m = 127 or 7,
//   s = RN32(max |w_i| / m), 1 if that is 0;   q_i = w_i / s, rounded half to even, within -m .. m
//   error = |w - s q| / |w|, the lengths of the vectors, 0 for a row of zeros
// in binary64. Every row of every matrix is read. Nothing is written: k3 runs the weights as released.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "drivers/inspect/census.hpp"
#include "drivers/progress.hpp"
#include "k3/checkpoint/shard_index.hpp"
#include "k3/checkpoint/tensor_reader.hpp"
#include "k3/core/error.hpp"
#include "k3/io/jobs.hpp"

namespace k3::inspect {

/// Of one number of bits. `mean` is over rows.
struct QuantError {
    double mean = 0, worst = 0;
    std::uint64_t worst_row = 0, bytes = 0;  // bytes: codes and a float32 scale for each row
};

struct QuantRow {
    std::string name{};
    Class which{};
    std::uint64_t rows = 0, cols = 0, bytes = 0;
    std::uint64_t not_finite = 0;  // rows with an infinity or a NaN, left out
    std::array<QuantError, 2> errors{};
};
inline constexpr std::array<int, 2> kQuantBits{8, 4};

namespace detail {

struct RowError {
    bool finite = true;
    std::array<double, 2> error{};
};

inline RowError row_error(const double* w, std::size_t n) {
    RowError result;
    double largest = 0, length = 0;
    for (std::size_t i = 0; i < n; ++i) {
        result.finite = result.finite && std::isfinite(w[i]);
        largest = std::max(largest, std::fabs(w[i]));
        length += w[i] * w[i];
    }
    if (!result.finite || length == 0) return result;
    for (std::size_t k = 0; k < kQuantBits.size(); ++k) {
        const double most = (1 << (kQuantBits[k] - 1)) - 1;
        auto scale = static_cast<double>(static_cast<float>(largest / most));
        if (scale == 0) scale = 1;  // a row so small that its scale is no float32
        double off = 0;
        for (std::size_t i = 0; i < n; ++i) {
            const double code = std::clamp(std::nearbyint(w[i] / scale), -most, most);
            const double d = w[i] - scale * code;
            off += d * d;
        }
        result.error[k] = std::sqrt(off) / std::sqrt(length);
    }
    return result;
}

inline bool is_trunk(Class which) {
    return which == Class::lm_head || which == Class::kda || which == Class::mla || which == Class::dense ||
           which == Class::moe;
}

/// One matrix, in blocks of rows over the threads.
inline void study_matrix(const checkpoint::ShardIndex& index, const checkpoint::TensorInfo& info, unsigned threads,
                         QuantRow& result) {
    constexpr std::uint64_t kBlock = std::uint64_t{4} << 20;
    const std::size_t element = info.dtype == checkpoint::Dtype::f32 ? 4 : 2;
    const std::size_t cols = result.cols, row_bytes = cols * element;
    const std::uint64_t rows_each = std::max<std::uint64_t>(1, kBlock / row_bytes);
    std::vector<RowError> errors(result.rows);
    io::run_jobs(threads, (result.rows + rows_each - 1) / rows_each, [&](unsigned, std::size_t job) {
        const std::uint64_t begin = job * rows_each, end = std::min(result.rows, begin + rows_each);
        std::vector<std::byte> bytes((end - begin) * row_bytes);
        std::vector<double> row(cols);
        read_tensor(index, info, begin * row_bytes, bytes);
        for (std::uint64_t r = begin; r < end; ++r) {
            const std::byte* const at = bytes.data() + (r - begin) * row_bytes;
            for (std::size_t i = 0; i < cols; ++i) {
                std::uint32_t bits = 0;  // little-endian: bf16 is the upper half of a float32
                std::memcpy(reinterpret_cast<char*>(&bits) + 4 - element, at + i * element, element);
                float value = 0;
                std::memcpy(&value, &bits, 4);
                row[i] = static_cast<double>(value);
            }
            errors[r] = row_error(row.data(), cols);
        }
    });
    std::uint64_t counted = 0;
    for (std::uint64_t r = 0; r < result.rows; ++r) {
        if (!errors[r].finite) {
            ++result.not_finite;
            continue;
        }
        ++counted;
        for (std::size_t k = 0; k < kQuantBits.size(); ++k) {
            result.errors[k].mean += errors[r].error[k];
            if (errors[r].error[k] <= result.errors[k].worst) continue;
            result.errors[k].worst = errors[r].error[k];
            result.errors[k].worst_row = r;
        }
    }
    for (std::size_t k = 0; k < kQuantBits.size(); ++k) {
        if (counted != 0) result.errors[k].mean /= static_cast<double>(counted);
        result.errors[k].bytes = result.rows * ((cols * static_cast<unsigned>(kQuantBits[k]) + 7) / 8 + 4);
    }
}

}  // namespace detail

/// All matrices of the trunk whose name contains `match`, in the order of the shards. Errors: Code::tensor if there is
/// none; Code::read.
inline std::vector<QuantRow> study_quantisation(const checkpoint::ShardIndex& index, const std::string& match,
                                                unsigned threads) {
    const Census census = take_census(index);
    std::vector<QuantRow> list;
    std::vector<checkpoint::TensorInfo> places;
    std::uint64_t total = 0, done = 0;
    index.for_each([&](std::string_view name, const checkpoint::TensorInfo& info) {
        const bool real = info.dtype == checkpoint::Dtype::bf16 || info.dtype == checkpoint::Dtype::f32;
        if (!real || info.shape.rank() != 2 || info.shape[0] < 2 || info.shape[1] == 0) return;
        if (name.find(match) == std::string_view::npos) return;
        const Class which = detail::class_of(name, census.layers);
        if (!detail::is_trunk(which)) return;
        list.push_back({checkpoint::printable(name), which, info.shape[0], info.shape[1], info.bytes});
        places.push_back(info);
        total += info.bytes;
    });
    if (list.empty())
        throw Error(Code::tensor, "no matrix of the trunk has a name with '" + match + "'", "see --list",
                    {.path = index.directory()});
    drivers::Progress progress(total);
    for (std::size_t i = 0; i < list.size(); ++i) {
        progress(kClassNames[static_cast<std::size_t>(list[i].which)], done);
        detail::study_matrix(index, places[i], threads, list[i]);
        done += list[i].bytes;
    }
    progress("done", done);
    return list;
}

/// Sums by class: means weighted by rows, the worst of all.
inline std::vector<QuantRow> sum_by_class(const std::vector<QuantRow>& list) {
    std::vector<QuantRow> sums;
    for (const QuantRow& row : list) {
        auto sum = std::find_if(sums.begin(), sums.end(), [&](const QuantRow& s) { return s.which == row.which; });
        if (sum == sums.end()) {
            sums.push_back({});
            sum = sums.end() - 1;
            sum->which = row.which;
        }
        const auto before = static_cast<double>(sum->rows - sum->not_finite);
        const auto more = static_cast<double>(row.rows - row.not_finite);
        for (std::size_t k = 0; k < kQuantBits.size(); ++k) {
            QuantError& to = sum->errors[k];
            if (before + more > 0) to.mean = (to.mean * before + row.errors[k].mean * more) / (before + more);
            if (sum->name.empty() || row.errors[k].worst > to.worst) to.worst = row.errors[k].worst;
            to.bytes += row.errors[k].bytes;
        }
        sum->name = kClassNames[static_cast<std::size_t>(row.which)];
        sum->rows += row.rows;
        sum->not_finite += row.not_finite;
        sum->bytes += row.bytes;
    }
    return sums;
}

inline void print_quant_text(const std::vector<QuantRow>& list) {
    const auto line = [](const QuantRow& row) {
        std::printf("%12.6f %12.6f %12.6f %12.6f  %s\n", row.errors[0].mean, row.errors[0].worst, row.errors[1].mean,
                    row.errors[1].worst, row.name.c_str());
        if (row.not_finite != 0)
            std::printf("    %llu rows with an infinity or a NaN left out\n",
                        static_cast<unsigned long long>(row.not_finite));
    };
    std::printf("relative error of a row in symmetric integers with one scale a row\n");
    std::printf("%12s %12s %12s %12s\n", "int8 mean", "worst row", "int4 mean", "worst row");
    for (const QuantRow& row : list) line(row);
    std::printf("\nby class\n");
    std::uint64_t bytes = 0, small[2] = {0, 0};
    for (const QuantRow& row : sum_by_class(list)) {
        line(row);
        bytes += row.bytes;
        for (std::size_t k = 0; k < 2; ++k) small[k] += row.errors[k].bytes;
    }
    std::printf("\n%llu bytes of matrices would be %llu in int8, %llu in int4\n",
                static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(small[0]),
                static_cast<unsigned long long>(small[1]));
}

inline void print_quant_json(const std::vector<QuantRow>& list) {
    using Json = nlohmann::ordered_json;
    const auto table = [](const std::vector<QuantRow>& rows, bool sums) {
        Json json = Json::array();
        for (const QuantRow& row : rows) {
            Json entry = {{"name", row.name}, {"rows", row.rows}, {"bytes", row.bytes}, {"not_finite", row.not_finite}};
            if (!sums) entry["cols"] = row.cols;
            for (std::size_t k = 0; k < kQuantBits.size(); ++k) {
                const QuantError& e = row.errors[k];
                Json& to = entry["int" + std::to_string(kQuantBits[k])];
                to = {{"mean", e.mean}, {"worst", e.worst}, {"bytes", e.bytes}};
                if (!sums) to["worst_row"] = e.worst_row;
            }
            json.push_back(entry);
        }
        return json;
    };
    const Json root = {{"tensors", table(list, false)}, {"classes", table(sum_by_class(list), true)}};
    std::printf("%s\n", root.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
}

}  // namespace k3::inspect
#endif
