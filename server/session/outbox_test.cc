#include "server/session/outbox.h"

#include <gtest/gtest.h>

namespace teletensor::server {
namespace {

using core::Code;
using core::Status;

Limits small() {
  Limits limits;
  limits.credit_instructions = 100;
  limits.credit_bytes = 1000;
  limits.progress_bytes = 1000;
  limits.outbox_bytes = 10'000;
  limits.progress_every = std::chrono::hours(1);
  return limits;
}
wire::Progress next(Outbox& outbox) {
  wire::Progress progress;
  const auto message = outbox.take();
  EXPECT_NE(message, nullptr);
  if (message) {
    EXPECT_TRUE(wire::decode_progress(*message, progress).ok());
  }
  return progress;
}
wire::FetchedValue value(std::uint64_t seq, std::size_t bytes) {
  wire::FetchedValue fetched;
  fetched.seq = seq;
  fetched.dtype = core::DType::kU8;
  fetched.shape = {static_cast<std::int64_t>(bytes)};
  fetched.data.assign(bytes, 'x');
  return fetched;
}

TEST(Outbox, NothingToSayAtFirst) {
  Outbox outbox{small()};
  EXPECT_FALSE(outbox.take());
}

TEST(Outbox, ManyEventsBecomeOneMessage) {
  Outbox outbox{small()};
  ASSERT_TRUE(outbox.received(1, 10, 50).ok());
  for (std::uint64_t seq = 1; seq <= 10; ++seq) outbox.completed(seq);
  ASSERT_TRUE(outbox.fetched(value(3, 4)).ok());
  outbox.error({2, core::invalid("add: no")});
  outbox.raised({9, 2, {5, 6}});
  const wire::Progress p = next(outbox);
  EXPECT_EQ(p.completed_upto, 10u);
  EXPECT_EQ(p.received_upto, 10u);
  EXPECT_EQ(p.credit_upto, 110u);
  EXPECT_EQ(p.credit_bytes, 1050u);
  EXPECT_EQ(p.fetched.at(0).data, "xxxx");
  EXPECT_EQ(p.errors.at(0).status.message(), "add: no");
  EXPECT_EQ(p.raised.at(0).rebinds.size(), 2u);
  EXPECT_FALSE(outbox.take());
}

TEST(Outbox, LongCommandsAreReportedWhileOthersFollow) {
  Limits limits = small();
  limits.progress_every = std::chrono::milliseconds(0);
  Outbox outbox{limits};
  ASSERT_TRUE(outbox.received(1, 10, 50).ok());
  outbox.completed(3);
  EXPECT_EQ(next(outbox).completed_upto, 3u);
  EXPECT_FALSE(outbox.take());  // no further progress
  outbox.completed(4);
  EXPECT_EQ(next(outbox).completed_upto, 4u);
}

TEST(Outbox, ADescriptionSaysNothingOfTheCommandsBeforeIt) {
  Outbox outbox{small()};
  ASSERT_TRUE(outbox.received(1, 10, 50).ok());
  wire::FetchedValue described;
  described.seq = 5;
  described.description = wire::FetchedValue::Description{};
  ASSERT_TRUE(outbox.fetched(described).ok());
  EXPECT_EQ(next(outbox).completed_upto, 0u);
  wire::FetchedValue refused;
  refused.seq = refused.root = 6;
  refused.status = core::invalid("handle 9 is unknown");
  refused.description = wire::FetchedValue::Description{};
  ASSERT_TRUE(outbox.fetched(refused).ok());
  EXPECT_EQ(next(outbox).completed_upto, 0u);
  ASSERT_TRUE(outbox.fetched(value(7, 4)).ok());
  EXPECT_EQ(next(outbox).completed_upto, 7u);
}

// The memory of what the client has not read counts until it has acknowledged the message.
TEST(Outbox, BytesAreThoseOfWhatIsNotAcknowledged) {
  Outbox outbox{small(), true};
  EXPECT_EQ(outbox.bytes(), 0u);
  ASSERT_TRUE(outbox.fetched(value(1, 500)).ok());
  EXPECT_GE(outbox.bytes(), 500u);
  std::uint64_t before = outbox.bytes();
  // Errors whose texts are left out take memory as well.
  for (std::uint64_t seq = 0; seq < 1000; ++seq) {
    outbox.error({seq, Status(Code::kNotFound, std::string(LateErrors::kLeftOut))});
  }
  EXPECT_GE(outbox.bytes() - before, 1000 * sizeof(wire::ErrorEvent));
  before = outbox.bytes();
  outbox.raised({7, 6, std::vector<std::uint64_t>(1000)});
  EXPECT_GE(outbox.bytes() - before, 8000u);
  const Outbox::Message sent = outbox.take();
  ASSERT_NE(sent, nullptr);
  EXPECT_EQ(outbox.bytes(), sent->size());
  outbox.acknowledged(1);
  EXPECT_EQ(outbox.bytes(), 0u);
}

TEST(Outbox, HalfDoneIsNoNewsButDoneIs) {
  Outbox outbox{small()};
  ASSERT_TRUE(outbox.received(1, 10, 50).ok());
  outbox.completed(5);
  EXPECT_FALSE(outbox.take());
  outbox.completed(10);
  EXPECT_EQ(next(outbox).completed_upto, 10u);
}

TEST(Outbox, CreditsGoOutInGoodTime) {
  Outbox outbox{small()};
  ASSERT_TRUE(outbox.received(1, 90, 50).ok());
  outbox.completed(20);
  EXPECT_FALSE(outbox.take());
  outbox.completed(30);
  EXPECT_EQ(next(outbox).credit_upto, 130u);
}

TEST(Outbox, FramesMustFollowEachOther) {
  Outbox outbox{small()};
  EXPECT_EQ(outbox.received(2, 1, 1).status().code(), Code::kFailedPrecondition);
  EXPECT_TRUE(outbox.received(1, 3, 1).ok());
  // The same frame is received again.
  EXPECT_EQ(outbox.received(1, 3, 1).status().code(), Code::kFailedPrecondition);
  EXPECT_TRUE(outbox.received(4, 1, 1).ok());
  EXPECT_EQ(outbox.received_upto(), 4u);
}

TEST(Outbox, CreditsBind) {
  Outbox outbox{small()};
  EXPECT_EQ(outbox.received(1, 101, 10).status().code(), Code::kResourceExhausted);
  EXPECT_TRUE(outbox.received(1, 100, 10).ok());
  EXPECT_EQ(outbox.received(101, 1, 10).status().code(), Code::kResourceExhausted);
  outbox.completed(100);
  // Credits count only after the client was told.
  EXPECT_EQ(outbox.received(101, 1, 10).status().code(), Code::kResourceExhausted);
  (void)outbox.take();
  EXPECT_TRUE(outbox.received(101, 1, 10).ok());
  EXPECT_EQ(outbox.received(102, 1, 1000).status().code(), Code::kResourceExhausted);
}

TEST(Outbox, BytesComeBackWithTheirFrames) {
  Outbox outbox{small()};
  ASSERT_TRUE(outbox.received(1, 2, 400).ok());
  ASSERT_TRUE(outbox.received(3, 2, 400).ok());
  outbox.completed(3);
  EXPECT_EQ(next(outbox).credit_bytes, 1400u);
  outbox.completed(4);
  EXPECT_EQ(next(outbox).credit_bytes, 1800u);
  ASSERT_TRUE(outbox.received(5, 0, 100).ok());  // An empty frame returns its credits soon.
  ASSERT_TRUE(outbox.received(5, 0, 300).ok());
  EXPECT_EQ(next(outbox).credit_bytes, 2200u);
}

TEST(Outbox, LargeValuesAreSpreadOverMessages) {
  Outbox outbox{small()};
  for (std::uint64_t seq = 1; seq <= 5; ++seq) ASSERT_TRUE(outbox.fetched(value(seq, 600)).ok());
  std::size_t messages = 0, values = 0;
  while (values < 5) {
    const wire::Progress p = next(outbox);
    ++messages;
    EXPECT_LE(p.fetched.size(), 2u);
    EXPECT_EQ(p.fetched.at(0).seq, values + 1);
    values += p.fetched.size();
  }
  EXPECT_EQ(messages, 3u);
}

TEST(Outbox, AClientThatLeavesTooMuchUnread) {
  Outbox outbox{small()};
  core::Status status;
  int values = 0;
  while (status.ok() && values < 100) {
    status = outbox.fetched(value(1, 1000));
    ++values;
  }
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_LE(values, 10);
}

TEST(Outbox, TextsOfErrorsThatNobodyReadsAreBounded) {
  Outbox outbox{small()};
  constexpr std::uint64_t kErrors = 10'000;
  const std::string text(1000, 'e');
  for (std::uint64_t seq = 1; seq <= kErrors; ++seq) outbox.error({seq, core::invalid(text)});
  outbox.error({kErrors + 1, Status(Code::kResourceExhausted, "no memory")});
  const wire::Progress p = next(outbox);
  ASSERT_EQ(p.errors.size(), kErrors + 1);
  std::size_t bytes = 0, whole = 0;
  for (std::uint64_t i = 0; i < kErrors; ++i) {
    EXPECT_EQ(p.errors[i].root, i + 1);
    EXPECT_EQ(p.errors[i].status.code(), Code::kInvalidArgument);
    bytes += p.errors[i].status.message().size();
    whole += p.errors[i].status.message() == text;
  }
  EXPECT_EQ(whole, LateErrors::kMaxTexts / text.size());
  EXPECT_LE(bytes, LateErrors::kMaxTexts + kErrors * LateErrors::kLeftOut.size());
  EXPECT_EQ(p.errors.back().status.message(), "no memory");
  outbox.error({kErrors + 2, core::invalid(text)});
  EXPECT_EQ(next(outbox).errors.at(0).status.message(), text);
}

TEST(Outbox, ALongTextOfAnErrorIsCutBetweenCharacters) {
  Outbox outbox{small()};
  std::string text = "x";
  while (text.size() < 10'000) text += "\u00e4";
  outbox.error({1, core::invalid(text)});
  auto failed = value(2, 0);
  failed.status = core::invalid(text);
  ASSERT_TRUE(outbox.fetched(std::move(failed)).ok());
  const wire::Progress p = next(outbox);
  const std::string cut = text.substr(0, LateErrors::kMaxText - 1) + "...";
  EXPECT_EQ(p.errors.at(0).status.message(), cut);
  EXPECT_EQ(p.fetched.at(0).status.message(), cut);
}

TEST(Outbox, TextsOfFailedValuesCountAsUnread) {
  Outbox outbox{small()};
  const auto failed = [] {
    auto value = teletensor::server::value(1, 0);
    value.status = core::invalid(std::string(4000, 'e'));
    return value;
  };
  ASSERT_TRUE(outbox.fetched(failed()).ok());
  ASSERT_TRUE(outbox.fetched(failed()).ok());
  EXPECT_EQ(outbox.fetched(failed()).code(), Code::kResourceExhausted);
}

TEST(Outbox, FramesThatComeTwiceAreNotNew) {
  Outbox outbox{small(), true, 1};
  EXPECT_TRUE(*outbox.received(1, 10, 50));
  EXPECT_FALSE(*outbox.received(1, 10, 50));
  EXPECT_EQ(outbox.received(6, 10, 50).status().code(), Code::kFailedPrecondition);
  EXPECT_TRUE(*outbox.received(11, 1, 50));
  Outbox other{small(), false};
  EXPECT_TRUE(*other.received(1, 10, 50));
  EXPECT_EQ(other.received(1, 10, 50).status().code(), Code::kFailedPrecondition);
}

TEST(Outbox, WhatWasNotAcknowledgedIsSentAgain) {
  Outbox outbox{small(), true, 1};
  ASSERT_TRUE(outbox.received(1, 10, 50).ok());
  ASSERT_TRUE(outbox.fetched(value(3, 4)).ok());
  const auto first = outbox.take(1);
  ASSERT_TRUE(outbox.fetched(value(4, 4)).ok());
  const auto second = outbox.take(1);
  EXPECT_FALSE(outbox.take(1));
  EXPECT_TRUE(outbox.rewind(1, 2));
  EXPECT_FALSE(outbox.take(1));  // The older stream receives nothing.
  EXPECT_EQ(outbox.take(2), second);
  wire::Progress progress;
  const auto third = outbox.take(2);
  ASSERT_TRUE(third);
  ASSERT_TRUE(wire::decode_progress(*third, progress).ok());
  EXPECT_EQ(progress.number, 3u);
  EXPECT_TRUE(progress.fetched.empty());
  EXPECT_FALSE(outbox.take(2));
  outbox.acknowledged(2);
  EXPECT_TRUE(outbox.rewind(2, 3));
  EXPECT_NE(outbox.take(3), second);
}

TEST(Outbox, AClientThatAcknowledgesNothingCannotComeBack) {
  Outbox outbox{small(), true, 1};
  ASSERT_TRUE(outbox.received(1, 100, 50).ok());
  for (std::uint64_t seq = 1; seq < 40; ++seq) {
    ASSERT_TRUE(outbox.fetched(value(seq, 500)).ok());
    EXPECT_TRUE(outbox.take(1));
  }
  EXPECT_FALSE(outbox.rewind(0, 2));
  EXPECT_TRUE(outbox.rewind(39, 3));
}

}  // namespace
}  // namespace teletensor::server
