// Tests that commands, frames, chunks and progress are read in every encoding that protobuf
// permits, against the classes that protoc generates.
#include "proto/wire/canonical.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "proto/wire/bulk.h"
#include "proto/wire/encodings_test.h"
#include "proto/wire/frame.h"
#include "proto/wire/progress.h"
#include "proto/wire/testing.h"
#include "teletensor/v1/session.pb.h"

namespace teletensor::wire {
namespace {

using google::protobuf::FieldDescriptor;
using testing::Encodings;
using Kind = FieldRule::Kind;

Kind kind_of(const FieldDescriptor& field) {
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) return Kind::kOneof;
  const bool text = field.cpp_type() == FieldDescriptor::CPPTYPE_STRING;
  if (!field.is_repeated()) {
    return text ? Kind::kBytes : field.has_presence() ? Kind::kOptional : Kind::kNumber;
  }
  if (text) return Kind::kTexts;
  return field.type() == FieldDescriptor::TYPE_DOUBLE ? Kind::kReals : Kind::kNumbers;
}

void expect_rules(const google::protobuf::Descriptor& message, std::span<const FieldRule> rules) {
  SCOPED_TRACE(message.full_name());
  ASSERT_EQ(static_cast<std::size_t>(message.field_count()), rules.size());
  for (const FieldRule& rule : rules) {
    SCOPED_TRACE(rule.number);
    const FieldDescriptor* field = message.FindFieldByNumber(static_cast<int>(rule.number));
    ASSERT_NE(field, nullptr);
    EXPECT_EQ(kind_of(*field), rule.kind);
    EXPECT_EQ(field->real_containing_oneof() != nullptr, rule.kind == Kind::kOneof);
    if (rule.kind == Kind::kOneof) expect_rules(*field->message_type(), rule.fields);
  }
  EXPECT_TRUE(std::is_sorted(rules.begin(), rules.end(),
                             [](const auto& a, const auto& b) { return a.number < b.number; }));
}

TEST(Canonical, TheRulesAreThoseOfTheProtoFiles) {
  expect_rules(*v1::Command::descriptor(), command_fields());
}

v1::Frame random_frame(std::uint64_t seed, int commands) {
  testing::RandomCommands random(seed);
  FrameWriter writer;
  writer.begin(1 + seed, 70'000);
  for (int i = 0; i < commands; ++i) {
    const program::Command command = random.command(writer.next_id());
    writer.append(command, static_cast<std::uint32_t>(random.below(3)));
  }
  v1::Frame frame;
  EXPECT_TRUE(frame.ParseFromString(std::string(writer.finish(3, 4))));
  return frame;
}

void expect_equal(const Frame& a, const Frame& b) {
  EXPECT_EQ(a.first_seq, b.first_seq);
  EXPECT_EQ(a.first_id, b.first_id);
  EXPECT_EQ(a.ack_upto, b.ack_upto);
  EXPECT_EQ(a.attach_counter, b.attach_counter);
  EXPECT_EQ(a.next_id, b.next_id);
  ASSERT_EQ(a.commands.size(), b.commands.size());
  for (std::size_t i = 0; i < a.commands.size(); ++i) {
    EXPECT_TRUE(a.commands[i] == b.commands[i]) << "command " << i;
  }
}

TEST(Canonical, FramesAreReadInEveryEncoding) {
  FrameLimits limits;
  limits.bytes = 16 << 20;  // earlier values take bytes
  std::size_t others = 0;
  for (const bool thin : {false, true}) {
    const FrameReader reader(limits, {}, {}, thin);
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
      SCOPED_TRACE(seed);
      const v1::Frame message = random_frame(seed, 40);
      const std::string usual = message.SerializeAsString(), other = Encodings(seed)(message);
      v1::Frame same;
      ASSERT_TRUE(same.ParseFromString(other));
      ASSERT_EQ(same.SerializeAsString(), usual);
      Frame expected, frame;
      ASSERT_TRUE(reader.read(usual, expected).ok());
      const core::Status status = reader.read(other, frame);
      ASSERT_TRUE(status.ok()) << status.message();
      expect_equal(frame, expected);
      others += other != usual;
    }
  }
  EXPECT_EQ(others, 600u);
}

TEST(Canonical, ProtocReadsTheSameFromDamagedFrames) {
  const FrameReader reader;
  std::mt19937_64 random(5);
  int accepted = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    // protoc's classes refuse an earlier text that is not UTF-8, which nobody reads.
    const std::string bytes = Encodings(seed, false)(random_frame(seed, 1));
    for (int n = 0; n < 8; ++n) {
      std::string damaged = bytes;
      damaged[random() % damaged.size()] = static_cast<char>(random());
      Frame frame, expected;
      if (!reader.read(damaged, frame).ok()) continue;
      ++accepted;
      v1::Frame message;
      ASSERT_TRUE(message.ParseFromString(damaged));
      ASSERT_TRUE(message.GetReflection()->GetUnknownFields(message).empty());
      const core::Status status = reader.read(message.SerializeAsString(), expected);
      ASSERT_TRUE(status.ok()) << status.message();
      expect_equal(frame, expected);
    }
  }
  EXPECT_GT(accepted, 1000);
}

TEST(Canonical, UnknownFieldsAndWrongTypesAreRefusedInEveryOrder) {
  v1::Frame message = random_frame(7, 1);
  const auto refused = [&](const std::string& command) {
    const std::string body = v1::Command(message.commands(0)).SerializeAsString();
    std::string text;
    for (const std::string& whole : {command + body, body + command}) {
      v1::Frame frame;
      frame.set_first_seq(1);
      frame.set_first_id(70'000);
      std::string bytes = frame.SerializeAsString() + "\x2a";
      char size[kMaxVarint];
      bytes.append(size, put_varint(size, whole.size()));
      Frame out;
      const core::Status status = FrameReader().read(bytes + whole, out);
      EXPECT_EQ(status.code(), core::Code::kInvalidArgument);
      text += status.message() + "\n";
    }
    return text;
  };
  EXPECT_EQ(refused("\xc0\x02\x01"),
            "frame: command 1: unknown field 40\nframe: command 1: unknown field 40\n");
  EXPECT_NE(refused("\x0a\x01x").find("field 1 has the wrong wire type"), std::string::npos);
  EXPECT_NE(refused(std::string("\x4a\x05x", 3)).find("field 9 is cut off"), std::string::npos);
}

TEST(Canonical, APartOfAListThatIsCutOffDoesNotGoOnInTheNext) {
  // protobuf refuses both: the first part of the list ends within a number.
  EXPECT_FALSE(canonical_command(std::string("\x2a\x01\x80\x2a\x01\x01", 6)).ok());
  EXPECT_FALSE(canonical_command(std::string("\x42\x04"
                                             "abcd"
                                             "\x42\x04"
                                             "abcd",
                                             12))
                   .ok());
  EXPECT_TRUE(canonical_command(std::string("\x2a\x02\x80\x01\x2a\x01\x01", 7)).ok());
  // The same for the parts of a message.
  EXPECT_FALSE(canonical_command(std::string("\x72\x01\x08\x72\x01\x01", 6)).ok());
  EXPECT_TRUE(canonical_command(std::string("\x72\x02\x08\x01\x72\x02\x10\x01", 8)).ok());
}

v1::Progress random_progress(std::uint64_t seed) {
  testing::RandomCommands random(seed);
  v1::Progress progress;
  progress.set_completed_upto(random.below(1 << 20));
  progress.set_credit_bytes(random.below(1 << 30));
  progress.set_number(1 + random.below(1000));
  for (std::uint64_t n = 1 + random.below(3); n > 0; --n) {
    v1::Fetched& value = *progress.add_fetched();
    value.set_seq(random.below(1000));
    value.set_dtype(v1::DTYPE_INT64);
    std::size_t elements = 1;
    for (std::uint64_t rank = random.below(4); rank > 0; --rank) {
      value.add_shape(static_cast<std::int64_t>(1 + random.below(200)));
      elements *= static_cast<std::size_t>(value.shape(value.shape_size() - 1));
    }
    if (random.coin() || elements > 4096) {
      v1::TensorDescription& description = *value.mutable_description();
      description.set_device("sim:1");
      for (const std::int64_t size : value.shape()) description.add_strides(size - 3);
      description.set_requires_grad(random.coin());
    } else {
      value.set_data(std::string(8 * elements, 'x'));
    }
  }
  v1::Raised& raised = *progress.add_raised();
  raised.set_seq(random.below(1000));
  for (std::uint64_t m = random.below(300); m > 0; --m) raised.add_rebinds(m * m);
  v1::LateError& error = *progress.add_errors();
  error.set_root(random.below(99));
  error.set_code(3);
  error.set_text("matmul");
  return progress;
}

TEST(Canonical, ProgressIsReadInEveryEncoding) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    const v1::Progress message = random_progress(seed);
    const std::string usual = message.SerializeAsString(), other = Encodings(seed)(message);
    v1::Progress same;
    ASSERT_TRUE(same.ParseFromString(other));
    ASSERT_EQ(same.SerializeAsString(), usual);
    Progress progress;
    ASSERT_TRUE(decode_progress(other, progress).ok());
    EXPECT_EQ(encode_progress(progress), usual);
  }
}

TEST(Canonical, ChunksAreReadInEveryEncoding) {
  int elsewhere = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    testing::RandomCommands random(seed);
    v1::UploadChunk upload;
    upload.set_bytes(random.below(1 << 20));
    upload.set_device(256 + static_cast<std::uint32_t>(random.below(3)));
    upload.set_offset(random.below(1 << 20));
    upload.set_data(std::string(random.below(500), 'd'));
    std::string bytes = Encodings(seed)(upload);
    UploadHeader header;
    auto data = decode_upload_header(bytes, bytes.size(), header);
    ASSERT_TRUE(data.ok()) << data.status().message();
    EXPECT_EQ(header.bytes, upload.bytes());
    EXPECT_EQ(header.device.index, upload.device() - 256);
    EXPECT_EQ(header.offset, upload.offset());
    EXPECT_EQ(bytes.substr(data->data_at, data->data_size), upload.data());
    // A prefix gives the same, or says that it is not enough.
    UploadHeader again;
    const auto part = decode_upload_header(std::string_view(bytes).substr(0, kMaxChunkHeader),
                                           bytes.size(), again);
    if (part.ok()) {
      EXPECT_EQ(again.offset, header.offset);
      EXPECT_EQ(part->data_at, data->data_at);
    } else {
      ++elsewhere;
    }

    v1::DownloadChunk download;
    download.set_bytes(random.below(1 << 20));
    download.set_dtype(v1::DTYPE_FLOAT64);
    for (std::uint64_t rank = random.below(5); rank > 0; --rank) {
      download.add_shape(static_cast<std::int64_t>(random.below(300)));
    }
    download.set_offset(random.below(1 << 20));
    download.set_data(std::string(random.below(500), 'd'));
    auto& more = *download.GetReflection()->MutableUnknownFields(&download);
    more.AddLengthDelimited(30, "of a newer daemon");
    ASSERT_TRUE(more.SerializeToString(&bytes));
    more.Clear();
    bytes += Encodings(seed)(download);
    DownloadHeader answer;
    data = decode_download_header(bytes, bytes.size(), answer);
    ASSERT_TRUE(data.ok()) << data.status().message();
    EXPECT_EQ(answer.bytes, download.bytes());
    EXPECT_EQ(answer.offset, download.offset());
    EXPECT_TRUE(answer.first);
    EXPECT_TRUE(std::equal(answer.shape.begin(), answer.shape.end(), download.shape().begin(),
                           download.shape().end()));
    EXPECT_EQ(bytes.substr(data->data_at, data->data_size), download.data());
  }
  EXPECT_GT(elsewhere, 0);
}

TEST(Canonical, RequestsSkipFieldsOfANewerPeer) {
  DownloadAsked asked;
  ASSERT_TRUE(decode_download_request("\x1a\x01x\x10\x07\x08\x05\x08\x06", asked).ok());
  EXPECT_EQ(asked.seq, 6u);
  EXPECT_EQ(asked.offset, 7u);
  StagedAnswer staged;
  ASSERT_TRUE(decode_staged_reply("\x18\x09\x08\x05", staged).ok());
  EXPECT_EQ(staged.received, 5u);
  std::uint64_t upload = 0;
  ASSERT_TRUE(decode_upload_reply("\x18\x09\x08\x05", upload).ok());
  EXPECT_EQ(upload, 5u);
  EXPECT_FALSE(decode_upload_reply("\x18\x09", upload).ok());
}

}  // namespace
}  // namespace teletensor::wire
