#ifndef K3_DRIVERS_RUN_CHAT_HPP
#define K3_DRIVERS_RUN_CHAT_HPP
// k3 --chat: a line from standard input, an answer to standard output, and so on. The conversation is rendered anew for
// every turn and only what the state does not hold yet is fed; if the new ids do not begin with exactly those that were
// fed, all of them are fed again. Either way the same bits come out.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "drivers/exit_code.hpp"
#include "drivers/run/chat_writer.hpp"
#include "drivers/run/generate.hpp"
#include "drivers/run/interrupt.hpp"
#include "drivers/run/open_session.hpp"
#include "drivers/run/options.hpp"
#include "drivers/run/report.hpp"
#include "k3/core/error.hpp"
#include "k3/engine/sampler.hpp"
#include "k3/engine/session.hpp"
#include "k3/text/chat_history.hpp"
#include "k3/text/chat_message.hpp"
#include "k3/text/chat_renderer.hpp"
#include "k3/text/chat_reply.hpp"
#include "k3/text/tokenizer.hpp"
#include "k3/text/utf8.hpp"

namespace k3::run {

/// The messages of a conversation, and the same on disk after every change.
class ChatLog {
  public:
    /// What the history file holds, or nothing. Errors: Code::chat, read; Code::usage if --system contradicts it.
    explicit ChatLog(const ChatRequest& request)
        : path_(request.history_path.empty() ? "" : resolved(request.history_path)) {
        if (!path_.empty()) conversation_.messages = text::load_history(path_);
        const bool has_system = !messages().empty() && conversation_.messages.front().role == text::Role::system;
        if (!request.system) return;
        if (has_system && conversation_.messages.front().content != *request.system)
            throw Error(Code::usage, "--system differs from the system message of the history",
                        "leave --system out to go on with the conversation, or name another file", {.path = path_});
        if (!has_system && !messages().empty())
            throw Error(Code::usage, "the history has no system message, and one cannot be put before what was said",
                        "leave --system out, or name another file", {.path = path_});
        if (!has_system) add({.role = text::Role::system, .content = *request.system});
    }

    const text::Conversation& conversation() const noexcept { return conversation_; }
    std::span<const text::Message> messages() const noexcept { return conversation_.messages; }
    /// Whether the last word is the user's.
    bool owes_answer() const noexcept { return !messages().empty() && messages().back().role == text::Role::user; }
    std::size_t answers() const noexcept {
        return static_cast<std::size_t>(std::count_if(messages().begin(), messages().end(), [](const auto& message) {
            return message.role == text::Role::assistant;
        }));
    }

    /// Errors: Code::write; Code::chat for what the format cannot hold. The message is then not part of the
    /// conversation.
    void add(text::Message message) {
        conversation_.messages.push_back(std::move(message));
        try {
            save();
        } catch (...) {
            conversation_.messages.pop_back();
            throw;
        }
    }
    void drop_last() {
        conversation_.messages.pop_back();
        save();
    }
    /// Keeps the system message only.
    void reset() {
        auto& all = conversation_.messages;
        const bool has_system = !all.empty() && all.front().role == text::Role::system;
        all.resize(has_system ? 1 : 0);
        save();
    }
    /// Where the conversation is, for the end of a sentence.
    std::string kept() const {
        return path_.empty() ? "the conversation was not kept: give --history FILE" : "the conversation is in " + path_;
    }

  private:
    void save() const {
        if (!path_.empty()) text::save_history(path_, messages());
    }
    std::string path_;
    text::Conversation conversation_;
};

class Chat {
  public:
    /// Reads the history. Nothing of the model is read yet.
    Chat(const Options& options, const model::ModelConfig& config, const text::Tokenizer& tokenizer)
        : options_(options),
          tokenizer_(tokenizer),
          log_(*options.chat),
          report_(options.quiet, Report::Steps::unlisted) {
        for (const std::int64_t id : config.end_ids) ends_.push_back(static_cast<text::TokenId>(id));
        context_ = options.chat->context;
        const std::size_t history = render().size(), room = history + options.gen;
        if (context_ != 0 && context_ <= history)
            throw Error(Code::usage,
                        "--context: the conversation so far takes " + std::to_string(history) + " of the " +
                            std::to_string(context_) + " positions",
                        "give more, or start another conversation");
        if (context_ == 0) context_ = std::min(std::max<std::size_t>(8192, room), config.shape.max_positions);
        if (options.sampling) sampler_.emplace(*options.sampling);
    }

    /// Talks until the input ends; an exit code.
    int run() {
        engine::Session session = open_session(options_);
        if (context_ > session.config().shape.max_positions)
            throw Error(Code::usage,
                        "--context: " + std::to_string(context_) + " positions are more than the model's " +
                            std::to_string(session.config().shape.max_positions),
                        "give fewer, or start another conversation");
        const engine::Plan plan = session.plan(context_);
        if (plan.fits())
            report_.header(options_, session, plan,
                           "up to " + std::to_string(context_) + " positions, " + std::to_string(options_.gen) +
                               " tokens an answer, " + how_chosen(options_.sampling));
        try {
            load_weights(options_, session, plan, report_);
        } catch (const Error& error) {
            if (error.code() != Code::plan) throw;
            throw Error(Code::plan, error.message(),
                        error.next() + ", or give a smaller --context than " + std::to_string(context_));
        }
        chunk_ = plan.prefill_chunk;
        if (log_.owes_answer() && !answer(session) && !broken_reply_) return code_;
        std::string line;
        while (ask(line)) {
            const bool escaped = line.rfind("//", 0) == 0;  // a message that begins with a slash
            if (line.empty()) continue;
            if (line[0] == '/' && !escaped) {
                if (!command(session, line)) break;
                continue;
            }
            if (escaped) line.erase(0, 1);
            if (const auto bad = text::find_invalid_utf8(line)) {
                std::fprintf(stderr, "k3: the message is not UTF-8: the first bad byte is at offset %zu; convert it\n",
                             *bad);
                continue;
            }
            if (accept(std::move(line)) && !answer(session)) break;
        }
        return code_;
    }

  private:
    /// Positions an answer needs at least: its markup and some words.
    static constexpr std::size_t kShortestAnswer = 32;

    std::vector<text::TokenId> render() const {
        const text::ChatOptions how{.thinking = options_.chat->thinking, .effort = options_.chat->effort};
        return text::encode(tokenizer_, text::render(log_.conversation(), how));
    }

    bool ask(std::string& line) {
        if (!options_.quiet && ::isatty(STDIN_FILENO) != 0) std::fputs("user> ", stderr);
        release_interrupts();
        const bool got = static_cast<bool>(std::getline(std::cin, line));
        catch_interrupts(options_.quiet);
        if (std::cin.bad() || std::ferror(stdin) != 0)
            throw Error(Code::read, "standard input cannot be read", "type, or give a file or a pipe of lines");
        return got;
    }

    /// False: the conversation ends.
    bool command(engine::Session& session, std::string_view line) {
        line = line.substr(0, line.find_last_not_of(" \t\r") + 1);
        if (line == "/exit") return false;
        if (line == "/reset") {
            log_.reset();
            session.reset();
            fed_.clear();
            return true;
        }
        if (line != "/help") std::fprintf(stderr, "%s is no command\n", drivers::in_quotes(line).c_str());
        std::fputs(
            "/help   this\n/reset  forgets the conversation, but not the system message\n/exit   ends k3, as the "
            "end of the input does\nAnything else is a message to the model.\n",
            stderr);
        return true;
    }

    /// Takes a message of the user into the conversation. False, with the reason on stderr: it is not part of it.
    bool accept(std::string line) {
        if (log_.owes_answer()) {
            std::fprintf(stderr,
                         "k3: the message before has no answer; /reset, or start again with other options "
                         "(--temperature, --no-think, --gen)\n");
            return false;
        }
        log_.add({.role = text::Role::user, .content = std::move(line)});
        std::string reason;
        try {
            const std::size_t needed = render().size();
            if (needed + kShortestAnswer <= context_) return true;
            reason = "the conversation and an answer would take " + std::to_string(needed + kShortestAnswer) +
                     " positions of " + std::to_string(context_) +
                     "; say less, /reset, or start again with --context " +
                     std::to_string(std::max(2 * context_, needed + options_.gen)) + "; " + log_.kept();
        } catch (const Error& error) {
            reason = error.what();
        }
        log_.drop_last();
        std::fprintf(stderr, "k3: %s\n", reason.c_str());
        return false;
    }

    /// The answer to the last message. False: k3 ends, with code_.
    bool answer(engine::Session& session) {
        Ids ids = render();
        const bool goes_on = ids.size() > fed_.size() && std::equal(fed_.begin(), fed_.end(), ids.begin());
        if (!goes_on) session.reset();
        if (sampler_) sampler_->start_turn(log_.answers() + 1);
        text::ChatReply reply(tokenizer_, options_.chat->thinking, ends_);
        ChatWriter writer(reply, out_);
        Request request{.ids = std::move(ids), .gen = options_.gen, .chunk = chunk_};
        // The last token of an answer is not fed.
        request.gen = std::min(options_.gen, context_ - request.ids.size() + 1);
        request.end_ids.assign(ends_.begin(), ends_.end());
        request.end_ids.insert(request.end_ids.end(), tokenizer_.end_ids().begin(), tokenizer_.end_ids().end());
        request.choose = chooser(session, sampler_ ? &*sampler_ : nullptr);
        const std::size_t reused = session.position();
        Outcome outcome = generate(session, request, writer, report_);
        if (outcome.stopped_at >= 0)
            outcome.stopped_name = " (" + std::string(tokenizer_.bytes(outcome.stopped_at)) + ")";
        report_.end_of_text(out_.inside_line());
        fed_ = std::move(request.ids);
        fed_.insert(fed_.end(), outcome.ids.begin(), outcome.ids.end());
        fed_.resize(session.position());
        report_.turn(outcome, reused, fed_.size(), context_);
        return ended(outcome, reply, request.gen);
    }

    /// Whether an answer came to its end; if it did, it becomes part of the conversation.
    bool ended(const Outcome& outcome, text::ChatReply& reply, std::size_t gen) {
        const auto fail = [&](int code, const std::string& what) {
            std::fprintf(stderr, "k3: %s; %s\n", what.c_str(), log_.kept().c_str());
            code_ = code;
            return false;
        };
        if (outcome.failure) return fail(drivers::exit_code(outcome.failure->code()), outcome.failure->what());
        if (out_.failed()) return fail(drivers::kNotWritten, "standard output could not be written");
        if (outcome.interrupted) return fail(drivers::kInterrupted, "interrupted");
        broken_reply_ = true;  // until it is kept
        if (!reply.problem().empty())
            return fail(drivers::kFailed, "the answer broke off, it is not kept: " + reply.problem() +
                                              "; try --temperature, --no-think or /reset");
        if (outcome.stopped_at < 0)
            return fail(drivers::kFailed, "the answer has no end within " + std::to_string(gen) +
                                              " tokens, so it is not kept; raise --gen or --context");
        reply.push(outcome.stopped_at);
        try {
            text::Message message = reply.finish();
            if (!message.tool_calls.empty())
                return fail(drivers::kFailed,
                            "the answer calls a tool, and there is none here, so it is not kept; /reset, "
                            "or say that it must not");
            log_.add(std::move(message));
        } catch (const Error& error) {
            return fail(error.code() == Code::chat ? drivers::kFailed : drivers::exit_code(error.code()), error.what());
        }
        broken_reply_ = false;
        code_ = drivers::kSuccess;
        return true;
    }

    const Options& options_;
    const text::Tokenizer& tokenizer_;
    ChatLog log_;
    Report report_;
    Stdout out_{};
    std::vector<text::TokenId> ends_{}, fed_{};  // fed_: the ids the state holds
    std::optional<engine::Sampler> sampler_{};
    std::size_t context_ = 0, chunk_ = 1;
    int code_ = drivers::kSuccess;
    bool broken_reply_ = false;  // the last answer was none; another start may do better
};

}  // namespace k3::run
#endif
