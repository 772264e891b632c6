// Tests uploads and downloads of a server in this process: what ends them, and how they go on.
#include "server/server_test.h"

namespace teletensor::server {
namespace {

TEST_F(ServerTest, ATransferWhoseNextMessageDoesNotComeEnds) {
  Limits limits;
  limits.chunk_wait = 100ms;
  start(limits);
  Client client(tcp());
  client.open();
  v1::UploadReply reply;
  const auto context = client.context();
  const auto stream = client.stub->Upload(context.get(), &reply);
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(status.error_message(), "upload: no chunk came for 0 s");
  v1::DownloadRequest request;
  request.set_seq(1000);
  const auto asking = client.context();
  const grpc::Status none = client.stub->Download(asking.get(), request)->Finish();
  EXPECT_EQ(none.error_message(), "download: no command came for 0 s");
  ASSERT_TRUE(client.send({constant()}));
  EXPECT_TRUE(client.progress().has_value());
}

TEST_F(ServerTest, TooManyStreamsAreToldByAWord) {
  Limits limits;
  limits.streams = 8;  // A session has one for its transfers.
  start(limits);
  Client client(tcp());
  client.open();
  ASSERT_TRUE(client.send({constant()}));
  ASSERT_TRUE(client.progress().has_value());
  v1::UploadReply reply, refused;
  auto unfinished = client.context();
  unfinished->AddMetadata("teletensor-upload", "1");
  const auto held = client.stub->Upload(unfinished.get(), &reply);
  v1::UploadChunk part;
  part.set_bytes(8);
  part.set_data("1234");
  ASSERT_TRUE(held->Write(part));
  ASSERT_TRUE(eventually([&] {
    v1::StagedRequest request;
    v1::StagedReply staged;
    request.set_key(1);
    return client.stub->Staged(client.context().get(), request, &staged).ok() &&
           staged.received() == 4;
  }));
  const auto context = client.context();
  const grpc::Status status = client.stub->Upload(context.get(), &refused)->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), "too many streams: a session may have 1 now");
  EXPECT_EQ(reason(*context), "streams");
  unfinished->TryCancel();
}

v1::UploadChunk chunk(std::uint64_t bytes, std::uint64_t offset, std::string data) {
  v1::UploadChunk chunk;
  chunk.set_bytes(bytes);
  chunk.set_offset(offset);
  chunk.set_data(std::move(data));
  return chunk;
}

TEST_F(ServerTest, UploadAndDownload) {
  // The data is created first: a client that computes does not answer keepalive pings, and a
  // sanitizer makes this slow.
  std::string whole;
  for (int i = 0; i < 2'500'000; ++i) whole += static_cast<char>(i * 7);
  std::vector<v1::UploadChunk> chunks;
  for (std::size_t at = 0; at < whole.size(); at += 1 << 20) {
    chunks.push_back(chunk(at == 0 ? whole.size() : 0, at, whole.substr(at, 1 << 20)));
  }
  start();
  Client client("unix:" + server->socket());
  client.open();
  v1::UploadReply reply;
  const grpc::Status status = client.upload(chunks, &reply);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(reply.upload(), 1u);
  for (const std::uint64_t offset : {0u, 1'234'567u, 2'500'000u}) {
    const auto context = client.context();
    v1::DownloadRequest request;
    request.set_seq(1);
    request.set_offset(offset);
    const auto stream = client.stub->Download(context.get(), request);
    v1::DownloadChunk part;
    std::string back;
    while (stream->Read(&part)) {
      EXPECT_EQ(part.offset(), offset + back.size());
      if (back.empty()) {
        EXPECT_EQ(part.bytes(), whole.size());
        EXPECT_EQ(part.dtype(), v1::DTYPE_UINT8);
      }
      back += part.data();
    }
    EXPECT_TRUE(stream->Finish().ok());
    EXPECT_TRUE(back == whole.substr(offset));
  }
  client.cut();
  EXPECT_TRUE(all_gone());
}

TEST_F(ServerTest, UploadsThatAreWrong) {
  start();
  Client client(tcp());
  client.open();
  v1::UploadReply reply;
  const auto refused = [&](const std::vector<v1::UploadChunk>& chunks, StatusCode code,
                           const std::string& part) {
    const grpc::Status status = client.upload(chunks, &reply);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_NE(status.error_message().find(part), std::string::npos) << status.error_message();
    EXPECT_TRUE(eventually([this] { return books.get(&testing::Books::upload_bytes) == 0; }));
  };
  refused({}, StatusCode::INVALID_ARGUMENT, "no chunk");
  refused({chunk(10, 0, "12345")}, StatusCode::INVALID_ARGUMENT, "5 of the 10 bytes");
  refused({chunk(4, 0, "12345")}, StatusCode::INVALID_ARGUMENT, "longer than the 4 bytes");
  refused({chunk(4, 0, "12"), chunk(0, 3, "3")}, StatusCode::INVALID_ARGUMENT, "expected 2");
  refused({chunk(2ull << 30, 0, "x")}, StatusCode::RESOURCE_EXHAUSTED, "out of memory");
  refused({chunk(~0ull, 0, "x")}, StatusCode::RESOURCE_EXHAUSTED, "out of memory");
  refused({chunk(2 << 20, 0, std::string((1 << 20) + 1, 'x'))}, StatusCode::RESOURCE_EXHAUSTED,
          "a chunk of 1048577 bytes");
  v1::UploadChunk odd = chunk(4, 0, "1234");
  odd.GetReflection()->MutableUnknownFields(&odd)->AddVarint(9, 1);
  refused({odd}, StatusCode::INVALID_ARGUMENT, "chunk");
  EXPECT_TRUE(client.upload({chunk(0, 0, "")}, &reply).ok());  // An empty upload is valid.
  // The session continues after the refused uploads.
  ASSERT_TRUE(client.send({constant(), program::Fetch{1, false}}));
  EXPECT_TRUE(client.progress().has_value());
}

TEST_F(ServerTest, AClientKilledMidUpload) {
  start();
  Client client(tcp());
  client.open();
  const auto context = client.context();
  v1::UploadReply reply;
  auto stream = client.stub->Upload(context.get(), &reply);
  ASSERT_TRUE(stream->Write(chunk(1 << 20, 0, std::string(1000, 'x'))));
  ASSERT_TRUE(eventually([this] { return books.get(&testing::Books::upload_bytes) == 1 << 20; }));
  context->TryCancel();
  EXPECT_FALSE(stream->Finish().ok());
  EXPECT_TRUE(eventually([this] { return books.get(&testing::Books::upload_bytes) == 0; }));
}

TEST_F(ServerTest, AnUploadEndsWithItsSession) {
  start();
  Client client(tcp());
  client.open();
  const auto context = client.context();
  v1::UploadReply reply;
  auto stream = client.stub->Upload(context.get(), &reply);
  ASSERT_TRUE(stream->Write(chunk(1 << 20, 0, "x")));
  ASSERT_TRUE(eventually([this] { return books.get(&testing::Books::upload_bytes) > 0; }));
  client.cut();
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(all_gone());
}

TEST_F(ServerTest, DownloadsThatAreWrong) {
  start();
  Client client(tcp());
  client.open();
  v1::DownloadRequest request;
  request.set_seq(99);
  EXPECT_EQ(client.stub->Download(client.context().get(), request)->Finish().error_code(),
            StatusCode::NOT_FOUND);
}

}  // namespace
}  // namespace teletensor::server
