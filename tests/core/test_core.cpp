// Digest, Arena, Exec, views, faults, the error line, Buffer.
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

#include "k3/core/buffer.hpp"
#include "k3/core/digest.hpp"
#include "k3/core/error.hpp"
#include "k3/core/exec.hpp"
#include "k3/core/fault.hpp"
#include "k3/core/view.hpp"
#include "support/doctest.hpp"
#include "support/kernel_table_data.hpp"

using namespace k3;

TEST_CASE("core/digest: FNV-1a-64 known answers") {
    const auto of = [](const char* text) {
        core::Digest d;
        d.add_bytes(text, std::strlen(text));
        return d.value();
    };
    CHECK(of("") == 0xcbf29ce484222325U);  // the offset basis: --gen 0
    CHECK(of("a") == 0xaf63dc4c8601ec8cU);
    CHECK(of("foobar") == 0x85944171f73967e8U);
}

TEST_CASE(
    "core/digest: a float is its four little-endian bytes, a double its eight; NaN is one pattern, -0 is not +0") {
    const auto of = [](auto... values) {
        core::Digest d;
        (d.add(values), ...);
        return d.value();
    };
    const unsigned char one[4] = {0, 0, 0x80, 0x3f}, wide[8] = {0, 0, 0, 0, 0, 0, 0xf0, 0x3f},
                        nan[4] = {0, 0, 0xc0, 0x7f};
    const auto bytes = [](const unsigned char* p, std::size_t n) {
        core::Digest d;
        d.add_bytes(p, n);
        return d.value();
    };
    CHECK(of(1.0F) == bytes(one, 4));
    CHECK(of(1.0) == bytes(wide, 8));
    for (const std::uint32_t pattern : {0x7fc00000U, 0xffc00000U, 0x7f800001U, 0xffffffffU})
        CHECK(of(std::bit_cast<float>(pattern)) == bytes(nan, 4));
    for (const std::uint64_t pattern : {0x7ff8000000000000U, 0xfff0000000000001U})
        CHECK(of(std::bit_cast<double>(pattern)) == of(std::bit_cast<double>(std::uint64_t{0x7ff8000000000000U})));
    CHECK(of(tests::kInf) != of(tests::kNaN));
    CHECK(of(-0.0F) != of(0.0F));
    CHECK(of(-0.0) != of(0.0));
    CHECK(of(1.0F, 2.0F) != of(2.0F, 1.0F));
    const float pair[2] = {1, 2};
    core::Digest whole, first;
    whole.add(pair, 2);
    first.add(1.0F);
    core::Digest second(first.value());  // a split run equals one run
    second.add(2.0F);
    CHECK(whole.value() == second.value());
    CHECK(whole.value() == of(1.0F, 2.0F));
}

TEST_CASE("core/exec: Arena aligns to 64, counts without memory, and says when it overflowed") {
    alignas(64) std::byte memory[256];
    core::Arena arena(memory, sizeof memory);
    CHECK(arena.take<float>(1) == reinterpret_cast<float*>(memory));
    CHECK(arena.take<double>(9) == reinterpret_cast<double*>(memory + 64));
    CHECK(arena.used() == 192);
    CHECK(reinterpret_cast<std::byte*>(arena.take<char>(0)) == memory + 192);
    CHECK(arena.used() == 192);
    CHECK_FALSE(arena.overflowed());
    static_cast<void>(arena.take<char>(64));
    CHECK_FALSE(arena.overflowed());  // exactly full
#if defined(NDEBUG)                   // otherwise it is an assertion
    core::Arena full = arena;
    static_cast<void>(full.take<char>(1));
    CHECK(full.overflowed());
#endif
    core::Arena counting;
    CHECK(counting.take<double>(100) == nullptr);
    CHECK(counting.take<float>(1) == nullptr);
    CHECK(counting.used() == 832 + 64);
    CHECK_FALSE(counting.overflowed());
    const auto callee = [](core::Arena copy) {  // by value: what a callee takes is given back
        static_cast<void>(copy.take<char>(1));
        return copy.used();
    };
    CHECK(callee(counting) == 832 + 128);
    CHECK(counting.used() == 832 + 64);
}

TEST_CASE("core/exec: each thread has its own part of the local scratch") {
    alignas(64) std::byte memory[3 * 128 + 64];
    const core::Exec exec{3, memory, 128, memory + 3 * 128, 64};
    for (unsigned t = 0; t < 3; ++t) {
        core::Arena local = exec.local_of(t);
        CHECK(local.take<std::byte>(128) == memory + 128 * t);
        CHECK_FALSE(local.overflowed());
    }
    core::Arena shared = exec.shared_arena();
    CHECK(shared.take<std::byte>(64) == memory + 384);
    CHECK_FALSE(shared.overflowed());
}

TEST_CASE("core/view: rows, row ranges and column ranges step by the stride") {
    int data[24];
    for (int i = 0; i < 24; ++i) data[i] = i;
    const core::MatView<int> plain(data, 4, 6), wide(data, 4, 5, 6);
    CHECK(plain.stride == 6);
    CHECK(*plain.row(2) == 12);
    const auto part = wide.row_range(1, 2).col_range(2, 3);
    CHECK(part.rows == 2);
    CHECK(part.cols == 3);
    CHECK(part.stride == 6);
    CHECK(*part.row(0) == 8);
    CHECK(part.row(1)[2] == 16);
    const core::MatView<const int> read = wide;
    CHECK(read.data == data);
    CHECK(read.rows == 4);
    CHECK(read.cols == 5);
    CHECK(read.stride == 6);
    CHECK(core::MatView<int>().data == nullptr);
    CHECK_FALSE((std::is_convertible_v<core::MatView<const int>, core::MatView<int>>));
}

TEST_CASE("core/fault: none is false, every other is true, fields that do not apply are -1") {
    CHECK_FALSE(core::Fault{});
    CHECK(core::Fault{core::FaultCode::router_nan});
    CHECK(core::Fault{core::FaultCode::scratch_too_small});
    const core::Fault fault{core::FaultCode::expert_failed, 3};
    CHECK(fault.layer == 3);
    CHECK(fault.token == -1);
    CHECK(fault.expert == -1);
}

TEST_CASE(
    "core/error: one line: path, tensor, offset: message; next step; what is empty leaves no punctuation behind") {
    const auto line = [](const Error& e) { return std::string(e.what()); };
    CHECK(line(Error(Code::read, "short read", "check the disk", {"a/b", "w", 12})) ==
          "a/b, tensor w, offset 12: short read; check the disk");
    CHECK(line(Error(Code::read, "short read", "check the disk", {"a/b", "", 0})) ==
          "a/b, offset 0: short read; check the disk");
    CHECK(line(Error(Code::tensor, "missing", "download again", {"", "w", {}})) == "tensor w: missing; download again");
    CHECK(line(Error(Code::usage, "bad option", "see --help")) == "bad option; see --help");
    CHECK(line(Error(Code::internal, "bad", "")) == "bad");
    const Error error(Code::plan, "message", "next", {"p", "t", 5});
    CHECK(error.code() == Code::plan);
    CHECK(error.message() == "message");
    CHECK(error.next() == "next");
    CHECK(error.where().path == "p");
    CHECK(error.where().tensor == "t");
    CHECK(error.where().offset == std::uint64_t{5});
    std::string text;
    try {
        throw error;
    } catch (const std::exception& e) {  // a copy keeps its line
        text = e.what();
    }
    CHECK(text == "p, tensor t, offset 5: message; next");
}

TEST_CASE("core/buffer: zero-filled, aligned, movable; none for 0 bytes; a refusal is an Error that names the size") {
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{3} << 20}) {
        core::Buffer buffer(bytes);
        REQUIRE(buffer.size() == bytes);
        const std::size_t align = bytes >= (std::size_t{2} << 20) ? std::size_t{2} << 20 : 4096;
        CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % align == 0);
        for (std::size_t i = 0; i < bytes; i += 997) REQUIRE(buffer.data()[i] == std::byte{0});
        buffer.data()[bytes - 1] = std::byte{7};
        std::byte* const at = buffer.data();
        core::Buffer moved(std::move(buffer));
        CHECK(moved.data() == at);
        core::Buffer target(10);
        target = std::move(moved);
        CHECK(target.data() == at);
        CHECK(target.as<unsigned char>()[bytes - 1] == 7);
    }
    CHECK(core::Buffer(0).data() == nullptr);
    CHECK(core::Buffer().size() == 0);
    std::string text;
    try {
        const core::Buffer impossible(std::size_t{1} << 60);
    } catch (const Error& error) {
        CHECK(error.code() == Code::plan);
        text = error.what();
    }
    CHECK(text.find("1152921504606846976 bytes") != std::string::npos);
}

TEST_CASE("core/buffer: huge pages are asked for, or refused, as the caller says") {
    // The kernel's own note of what was asked, per mapping: "hg" for huge pages, "nh" for none.
    const auto flags_at = [](const void* at) {
        std::ifstream maps("/proc/self/smaps");
        bool here = false;
        for (std::string line; std::getline(maps, line);) {
            unsigned long long begin = 0, end = 0;
            if (std::sscanf(line.c_str(), "%llx-%llx ", &begin, &end) == 2) {
                const auto address = reinterpret_cast<std::uintptr_t>(at);
                here = begin <= address && address < end;
            }
            if (here && line.rfind("VmFlags:", 0) == 0) return line + " ";
        }
        return std::string();
    };
    const std::size_t bytes = std::size_t{8} << 20;
    const core::Buffer huge(bytes), ordinary(bytes, core::Pages::ordinary), small(5000, core::Pages::ordinary);
    ordinary.data()[bytes - 1] = small.data()[4999] = std::byte{1};
    CHECK(ordinary.size() == bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(ordinary.data()) % 4096 == 0);
    if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled")) {
        MESSAGE("SKIP: this kernel has no huge pages to ask for");
        return;
    }
    CHECK(flags_at(huge.data()).find(" hg ") != std::string::npos);
    CHECK(flags_at(ordinary.data()).find(" nh ") != std::string::npos);
    CHECK(flags_at(ordinary.data() + bytes - 1).find(" nh ") != std::string::npos);
    CHECK(flags_at(small.data()).find(" nh ") != std::string::npos);
}
