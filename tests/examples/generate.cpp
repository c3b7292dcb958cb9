// Continues a prompt: the README's first run, from C++.
#include <cstdio>
#include <exception>

#include "k3/k3.hpp"
using namespace k3;

int main(int argc, char** argv) try {
    if (argc != 3) throw Error(Code::usage, "two arguments are needed", "usage: generate MODEL_DIR PROMPT");
    const std::string model = argv[1];
    constexpr std::size_t gen = 24;
    auto session = engine::Session::open({.model_dir = model, .arch = engine::widest_arch(), .threads = 2});
    const auto tokenizer = text::Tokenizer::open(model, session.config().shape.vocab);
    const std::vector<std::int32_t> prompt = tokenizer.encode(argv[2], text::Specials::as_ids);
    session.load(prompt.size() + gen);  // plans the memory, refuses if it is not there, reads the weights

    text::StreamDecoder decoder;  // a character may be several tokens
    core::Digest digest;
    std::span<const float> logits = session.feed(prompt);
    for (std::size_t step = 0; step < gen; ++step) {
        digest.add(logits.data(), logits.size());
        const std::int32_t id = session.argmax(logits, step);
        std::fputs(decoder.push(tokenizer.bytes(id)).c_str(), stdout);
        if (step + 1 < gen) logits = session.feed({&id, 1});
    }
    std::printf("%s\nlogits digest %016llx\n", decoder.flush().c_str(),
                static_cast<unsigned long long>(digest.value()));
} catch (const std::exception& error) {
    std::fprintf(stderr, "generate: %s\n", error.what());
    return 1;
}
