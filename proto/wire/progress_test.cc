// Tests progress messages and bulk headers: round trips, agreement with the classes that protoc
// generates, refused bytes.
#include "proto/wire/progress.h"

#include <gtest/gtest.h>

#include "proto/wire/bulk.h"
#include "proto/wire/testing.h"
#include "teletensor/v1/session.pb.h"

namespace teletensor::wire {
namespace {

using core::Code;
using core::Status;

Progress random_progress(std::uint64_t seed) {
  testing::RandomCommands random(seed);
  Progress p;
  p.completed_upto = random.below(2) * random.below(1 << 20);
  p.received_upto = random.below(1 << 20);
  p.credit_upto = static_cast<std::uint64_t>(random.integer());
  p.credit_bytes = random.below(1 << 30);
  p.number = random.below(1000);
  p.snapshot_upto = random.below(2) * random.below(1 << 20);
  for (std::uint64_t n = random.below(4); n > 0; --n) {
    FetchedValue& value = p.fetched.emplace_back();
    value.seq = random.below(1000);
    if (random.below(3) == 0) {
      value.status = Status(Code::kResourceExhausted, "out of memory");
      value.root = random.below(900);
      continue;
    }
    value.dtype = core::kAllDTypes[random.below(8)];
    for (std::uint64_t rank = random.below(4); rank > 0; --rank) {
      value.shape.push_back(static_cast<std::int64_t>(random.below(6)));
    }
    if (random.coin()) {
      FetchedValue::Description& description = value.description.emplace();
      description.device = "sim:1";
      for (std::int64_t size : value.shape) description.strides.push_back(size - 3);
      description.requires_grad = random.coin();
      continue;
    }
    value.data.assign(static_cast<std::size_t>(core::numel(value.shape)) * size_of(value.dtype),
                      'x');
  }
  for (std::uint64_t n = random.below(3); n > 0; --n) {
    p.errors.push_back({random.below(99), core::invalid("matmul: inner sizes differ: [2] x [3]")});
  }
  for (std::uint64_t n = random.below(3); n > 0; --n) {
    RaisedEvent& raised = p.raised.emplace_back();
    raised.seq = random.below(1000);
    raised.root = random.below(1000);
    for (std::uint64_t m = random.below(300); m > 0; --m) raised.rebinds.push_back(m * m);
  }
  for (std::uint64_t n = random.below(3); n > 0; --n) {
    p.lost_ranks.push_back({random.below(70), static_cast<std::uint32_t>(random.below(5)), "left"});
  }
  return p;
}

void expect_equal(const Status& a, const Status& b) {
  EXPECT_EQ(a.code(), b.code());
  EXPECT_EQ(a.message(), b.message());
}

TEST(Progress, RoundTripAndProtocsBytes) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    const Progress p = random_progress(seed);
    const std::string bytes = encode_progress(p);
    v1::Progress message;
    ASSERT_TRUE(message.ParseFromString(bytes));
    EXPECT_EQ(message.SerializeAsString(), bytes);
    EXPECT_EQ(message.credit_upto(), p.credit_upto);
    Progress back;
    ASSERT_TRUE(decode_progress(bytes, back).ok());
    EXPECT_EQ(back.completed_upto, p.completed_upto);
    EXPECT_EQ(back.received_upto, p.received_upto);
    EXPECT_EQ(back.credit_upto, p.credit_upto);
    EXPECT_EQ(back.credit_bytes, p.credit_bytes);
    EXPECT_EQ(back.number, p.number);
    EXPECT_EQ(back.snapshot_upto, p.snapshot_upto);
    ASSERT_EQ(back.fetched.size(), p.fetched.size());
    for (std::size_t i = 0; i < p.fetched.size(); ++i) {
      EXPECT_EQ(back.fetched[i].seq, p.fetched[i].seq);
      expect_equal(back.fetched[i].status, p.fetched[i].status);
      EXPECT_EQ(back.fetched[i].root, p.fetched[i].root);
      EXPECT_EQ(back.fetched[i].data, p.fetched[i].data);
      if (!p.fetched[i].status.ok()) continue;
      EXPECT_EQ(back.fetched[i].dtype, p.fetched[i].dtype);
      EXPECT_EQ(back.fetched[i].shape, p.fetched[i].shape);
      ASSERT_EQ(back.fetched[i].description.has_value(), p.fetched[i].description.has_value());
      if (!p.fetched[i].description) continue;
      EXPECT_EQ(back.fetched[i].description->device, p.fetched[i].description->device);
      EXPECT_EQ(back.fetched[i].description->strides, p.fetched[i].description->strides);
      EXPECT_EQ(back.fetched[i].description->requires_grad,
                p.fetched[i].description->requires_grad);
    }
    ASSERT_EQ(back.errors.size(), p.errors.size());
    for (std::size_t i = 0; i < p.errors.size(); ++i) {
      EXPECT_EQ(back.errors[i].root, p.errors[i].root);
      expect_equal(back.errors[i].status, p.errors[i].status);
    }
    ASSERT_EQ(back.lost_ranks.size(), p.lost_ranks.size());
    for (std::size_t i = 0; i < p.lost_ranks.size(); ++i) {
      EXPECT_EQ(back.lost_ranks[i].group, p.lost_ranks[i].group);
      EXPECT_EQ(back.lost_ranks[i].rank, p.lost_ranks[i].rank);
      EXPECT_EQ(back.lost_ranks[i].why, p.lost_ranks[i].why);
    }
    ASSERT_EQ(back.raised.size(), p.raised.size());
    for (std::size_t i = 0; i < p.raised.size(); ++i) {
      EXPECT_EQ(back.raised[i].seq, p.raised[i].seq);
      EXPECT_EQ(back.raised[i].root, p.raised[i].root);
      EXPECT_EQ(back.raised[i].rebinds, p.raised[i].rebinds);
    }
  }
}

TEST(Progress, TextsOfErrorsAreUtf8AndKeepTheirLines) {
  Progress sent;
  sent.number = 1;
  sent.errors.push_back({2, core::invalid("add: no\n(in the program: f.py:3) \xff\x1b[31m")});
  Progress read;
  ASSERT_TRUE(decode_progress(encode_progress(sent), read).ok());
  ASSERT_EQ(read.errors.size(), 1u);
  EXPECT_EQ(read.errors[0].status.message(), "add: no\n(in the program: f.py:3) ??[31m");
}

TEST(Progress, SkipsWhatANewerServerAdds) {
  v1::Progress message;
  message.set_completed_upto(9);
  message.GetReflection()->MutableUnknownFields(&message)->AddLengthDelimited(30, "new");
  message.GetReflection()->MutableUnknownFields(&message)->AddFixed64(31, 1);
  message.GetReflection()->MutableUnknownFields(&message)->AddFixed32(32, 1);
  Progress p;
  ASSERT_TRUE(decode_progress(message.SerializeAsString(), p).ok());
  EXPECT_EQ(p.completed_upto, 9u);
}

// The client decodes all messages into one object.
TEST(Progress, AMessageReplacesEverythingOfTheEarlierOne) {
  Progress p;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    ASSERT_TRUE(decode_progress(encode_progress(random_progress(seed)), p).ok());
  }
  ASSERT_TRUE(decode_progress("", p).ok());
  EXPECT_EQ(p.completed_upto + p.received_upto + p.credit_upto + p.credit_bytes, 0u);
  EXPECT_EQ(p.number + p.snapshot_upto, 0u);
  EXPECT_EQ(p.fetched.size() + p.errors.size() + p.raised.size(), 0u);
}

TEST(Progress, RefusesValuesThatDisagreeWithTheirShape) {
  v1::Progress message;
  auto* value = message.add_fetched();
  value->set_dtype(v1::DTYPE_INT64);
  value->add_shape(2);
  value->set_data(std::string(15, 'x'));
  Progress p;
  EXPECT_EQ(decode_progress(message.SerializeAsString(), p).code(), Code::kInvalidArgument);
  value->set_data(std::string(16, 'x'));
  EXPECT_TRUE(decode_progress(message.SerializeAsString(), p).ok());
  value->set_shape(0, -2);
  EXPECT_FALSE(decode_progress(message.SerializeAsString(), p).ok());
  value->clear_shape();
  for (int i = 0; i < 20; ++i) value->add_shape(1);
  EXPECT_FALSE(decode_progress(message.SerializeAsString(), p).ok());
}

TEST(Progress, DamagedBytesAreRefusedOrValid) {
  testing::RandomCommands random(3);
  const std::string whole =
      encode_progress(random_progress(4)) + encode_progress(random_progress(5));
  Progress p;
  int refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = whole.substr(0, random.below(whole.size() + 1));
    if (!bytes.empty()) bytes[random.below(bytes.size())] = static_cast<char>(random.below(256));
    refused += !decode_progress(bytes, p).ok();
  }
  EXPECT_GT(refused, 0);
}

TEST(Bulk, UploadChunkIsProtocs) {
  UploadHeader header{5000, {core::DeviceKind::kSim, 1}, 4096};
  const std::string data(904, 'd');
  std::string bytes = encode_upload_header(header, data.size());
  bytes += data;
  v1::UploadChunk message;
  ASSERT_TRUE(message.ParseFromString(bytes));
  EXPECT_EQ(message.SerializeAsString(), bytes);
  EXPECT_EQ(message.data(), data);
  UploadHeader back;
  const auto where = decode_upload_header(bytes, bytes.size(), back);
  ASSERT_TRUE(where.ok());
  EXPECT_EQ(bytes.substr(where->data_at), data);
  EXPECT_EQ(back.bytes, 5000u);
  EXPECT_EQ(back.device, header.device);
  EXPECT_EQ(back.offset, 4096u);
  // Only the first bytes are read.
  const auto again =
      decode_upload_header(std::string_view(bytes).substr(0, kMaxChunkHeader), bytes.size(), back);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->data_at, where->data_at);
}

TEST(Bulk, RefusesBrokenChunks) {
  UploadHeader header;
  EXPECT_FALSE(decode_upload_header("\x22\x05"
                                    "abc",
                                    5, header)
                   .ok());  // data cut off
  EXPECT_FALSE(decode_upload_header("\x22\x02"
                                    "abc",
                                    5, header)
                   .ok());                                         // no field after the data
  EXPECT_FALSE(decode_upload_header("\x28\x01", 2, header).ok());  // unknown field 5
  EXPECT_FALSE(decode_upload_header("\x10\x80\x80\x01", 4, header).ok());  // no such device
  EXPECT_FALSE(decode_upload_header("\x08", 1, header).ok());
  const auto empty = decode_upload_header("", 0, header);
  ASSERT_TRUE(empty.ok());
  EXPECT_EQ(empty->data_size, 0u);
}

TEST(Bulk, DownloadChunkIsProtocs) {
  DownloadHeader header;
  header.bytes = 48;
  header.dtype = core::DType::kF64;
  header.shape = {2, 3};
  std::string bytes = encode_download_header(header, 48) + std::string(48, 'z');
  v1::DownloadChunk message;
  ASSERT_TRUE(message.ParseFromString(bytes));
  EXPECT_EQ(message.SerializeAsString(), bytes);
  DownloadHeader back;
  const auto where = decode_download_header(bytes, bytes.size(), back);
  ASSERT_TRUE(where.ok());
  EXPECT_EQ(where->data_size, 48u);
  EXPECT_EQ(back.shape, header.shape);
  EXPECT_EQ(back.dtype, header.dtype);
  header.first = false;
  header.offset = 8;
  bytes = encode_download_header(header, 1) + "z";
  ASSERT_TRUE(decode_download_header(bytes, bytes.size(), back).ok());
  EXPECT_FALSE(back.first);
  EXPECT_EQ(back.offset, 8u);
}

TEST(Bulk, DownloadRequest) {
  DownloadAsked back;
  ASSERT_TRUE(decode_download_request(encode_download_request({1ull << 40, 7}), back).ok());
  EXPECT_EQ(back.seq, 1ull << 40);
  EXPECT_EQ(back.offset, 7u);
  EXPECT_FALSE(decode_download_request("\x08", back).ok());
}

}  // namespace
}  // namespace teletensor::wire
