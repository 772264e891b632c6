#include "server/net/local/share_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/core/threads.h"
#include "server/base/log.h"
#include "server/base/os/private_files.h"
#include "server/base/secrets.h"

namespace teletensor::server {

using core::Code;
using core::MutexLock;
using core::Result;
using core::Status;
using core::UniqueFd;

namespace {

constexpr int kWorkers = 2;
constexpr std::chrono::milliseconds kFirstRequest{5000}, kNextUpload{500};
constexpr int kTickMs = 500;
constexpr int kSoonMs = 1;  // Time for which a worker waits for the next piece of an upload.

// Returns true if the process at the other end runs as root or as the daemon's user.
bool may_come(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == geteuid() || peer.uid == 0);
}

// Sends a reply. The socket's buffer is nearly empty, so a record that cannot be sent at once means
// that the peer violates the protocol.
bool send_record(int socket, const wire::ShareReply& reply, int descriptor) {
  iovec part{const_cast<wire::ShareReply*>(&reply), sizeof reply};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(sizeof reply);
}

// Each block of shared memory needs two or three descriptors.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min<rlim_t>(limit.rlim_max, 16384);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

Result<std::unique_ptr<ShareServer>> ShareServer::start(const std::string& socket, Leases& leases) {
  std::unique_ptr<ShareServer> server(new ShareServer(socket + wire::kShareSuffix, leases));
  TT_RETURN_IF_ERROR(server->listen());
  return server;
}

Status ShareServer::listen() {
  raise_descriptor_limit();
  auto streams = LocalStreams::start(leases_);
  if (!streams.ok()) return streams.status();
  streams_ = std::move(*streams);
  auto file = SocketFile::open(path_, 0600);
  if (!file.ok()) return file.status();
  file_ = std::move(*file);
  listener_ = file_->descriptor();
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  event_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_ || !event_) return system_error(path_);
  for (const int each : {listener_, event_.get()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = each;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, each, &event) != 0) return system_error(path_);
  }
  threads_.push_back(core::start_thread([this] { watch(); }));
  for (int i = 0; i < kWorkers; ++i) {
    threads_.push_back(core::start_thread([this] { work(); }));
  }
  return {};
}

ShareServer::~ShareServer() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (event_) eventfd_write(event_.get(), 1);
  for (std::thread& thread : threads_) thread.join();
  connections_.clear();
}

// ---------------------------------------------------------------- the watcher thread

void ShareServer::watch() {
  Clock::time_point looked = Clock::now();
  while (true) {
    epoll_event events[64];
    const int n = epoll_wait(epoll_.get(), events, 64, kTickMs);
    std::vector<ConnectionRef> done;
    {
      MutexLock lock(mutex_);
      if (stop_) return;
      done.swap(done_);
    }
    for (int i = 0; i < n; ++i) {
      const int ready = events[i].data.fd;
      if (ready == listener_) {
        if (accepting_) accept_all();
      } else if (ready == event_.get()) {
        eventfd_t count;
        eventfd_read(event_.get(), &count);
      } else if (const auto found = connections_.find(ready); found != connections_.end()) {
        const ConnectionRef connection = found->second;
        look_at(connection);
      }
    }
    for (const ConnectionRef& connection : done) {
      connection->working = false;
      connection->since = Clock::now();
      if (connection->broken) {
        drop(connection);
      } else {
        arm(*connection, false);
      }
    }
    if (Clock::now() - looked > std::chrono::milliseconds(kTickMs)) {
      looked = Clock::now();
      end_silent();
      end_takes();
    }
  }
}

// The connection reports one event, and then none until it is armed again, so that nothing is read
// while a job runs.
void ShareServer::arm(const Connection& connection, bool add) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP | EPOLLONESHOT;
  event.data.fd = connection.socket.get();
  epoll_ctl(epoll_.get(), add ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, connection.socket.get(), &event);
}

void ShareServer::accept_all() {
  while (true) {
    UniqueFd socket(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN) {  // No descriptor is left: stop accepting connections for a while.
        accepting_ = false;
        epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_, nullptr);
        log_warn("share_refused", {{"reason", std::strerror(errno)}});
      }
      return;
    }
    if (connections_.size() >= kMaxConnections || !may_come(socket.get())) continue;
    auto connection = std::make_shared<Connection>();
    connection->socket = std::move(socket);
    connections_.emplace(connection->socket.get(), connection);
    arm(*connection, true);
  }
}

void ShareServer::end_silent() {
  if (!accepting_) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = listener_;
    accepting_ = epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_, &event) == 0;
  }
  std::vector<ConnectionRef> silent;
  for (const auto& [socket, connection] : connections_) {
    if (connection->working || (connection->share != 0 && !connection->way)) continue;
    const auto most = connection->way ? kNextUpload : kFirstRequest;
    if (Clock::now() - connection->since > most) silent.push_back(connection);
  }
  for (const ConnectionRef& connection : silent) drop(connection);
}

void ShareServer::end_takes() {
  const std::chrono::milliseconds most = leases_.limits().chunk_wait;
  std::vector<Take> late;
  {
    MutexLock lock(mutex_);
    for (const auto& [connection, take] : takes_) {
      if (Clock::now() - take.since > most) late.push_back(take);
    }
  }
  for (const Take& take : late) {
    if (!lacks_command(*take.lease, take.seq, most)) continue;
    (void)take.lease->with_session([&](engine::Session& session) {
      session.downloads().stop_waiting(take.seq, take.wait, no_command_came(most));
      return Status();
    });
  }
}

ShareServer::Heard ShareServer::hear(Connection& connection, wire::ShareRequest& request) {
  std::string& in = connection.in;
  char bytes[sizeof request];
  const ssize_t n = recv(connection.socket.get(), bytes, sizeof request - in.size(), 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return Heard::kNotYet;
  if (n <= 0) return Heard::kEnd;
  in.append(bytes, static_cast<std::size_t>(n));
  if (in.size() < sizeof request) return Heard::kNotYet;
  std::memcpy(&request, in.data(), sizeof request);
  in.clear();
  return request.magic == wire::kShareMagic ? Heard::kRequest : Heard::kEnd;
}

void ShareServer::look_at(const ConnectionRef& connection) {
  wire::ShareRequest request;
  const Heard heard = hear(*connection, request);
  if (heard == Heard::kNotYet) return arm(*connection, false);
  if (heard == Heard::kEnd) return drop(connection);
  connection->working = true;
  give([this, connection, request] { serve(connection, request); });
}

// The memory is freed by a worker, because that may take long.
void ShareServer::drop(const ConnectionRef& connection) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection->socket.get(), nullptr);
  connections_.erase(connection->socket.get());
  if (connection->share == 0) return;
  give([weak = connection->lease, upload = connection->upload, hold = std::move(connection->hold)] {
    const LeaseRef lease = weak.lock();
    if (lease && upload != 0) lease->staging().abort(upload);
  });
}

// ---------------------------------------------------------------- the worker threads

void ShareServer::give(std::function<void()> job) {
  {
    MutexLock lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
}

bool ShareServer::idle() {
  MutexLock lock(mutex_);
  return jobs_.empty();
}

void ShareServer::work() {
  while (true) {
    std::function<void()> job;
    {
      MutexLock lock(mutex_);
      while (jobs_.empty() && !stop_) changed_.wait(mutex_);
      if (stop_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

void ShareServer::answer(const ConnectionRef& connection, const Status& status,
                         wire::ShareReply reply, UniqueFd passed) {
  reply.code = static_cast<std::uint32_t>(status.code());
  if (!send_record(connection->socket.get(), reply, passed.get())) connection->broken = true;
  passed = UniqueFd();
  if (connection->upload != 0 && !connection->broken) {
    // The next piece of the upload is available or arrives soon. It is queued after the jobs of
    // other connections, and this worker takes the next job.
    wire::ShareRequest request;
    pollfd ready{connection->socket.get(), POLLIN, 0};
    const int most = idle() ? kSoonMs : 0;
    const Heard heard = poll(&ready, 1, most) > 0 ? hear(*connection, request) : Heard::kNotYet;
    if (heard == Heard::kRequest) {
      MutexLock lock(mutex_);
      jobs_.push_back([this, connection, request] { serve(connection, request); });
      return;
    }
    connection->broken = heard == Heard::kEnd;
  }
  finished(connection);
}

void ShareServer::finished(const ConnectionRef& connection) {
  {
    MutexLock lock(mutex_);
    done_.push_back(connection);
  }
  eventfd_write(event_.get(), 1);
}

Result<LeaseRef> ShareServer::lease_of(const wire::ShareRequest& request) const {
  LeaseRef lease = leases_.table().find_id(request.session);
  if (!lease || lease->ticket.empty() ||
      !same_secret(lease->ticket, {request.ticket, sizeof request.ticket})) {
    return Status(Code::kNotFound, "no session has this ticket");
  }
  return lease;
}

void ShareServer::serve(const ConnectionRef& connection, const wire::ShareRequest& request) {
  wire::ShareReply reply;
  const Result<LeaseRef> lease = lease_of(request);
  if (!lease.ok()) return answer(connection, lease.status(), reply);
  const bool first = connection->share == 0;
  if (request.kind == wire::kShareRun && first) return run(connection, *lease, request.number);
  const bool gpu = request.kind == wire::kShareTakeGpu;
  if ((gpu || request.kind == wire::kShareTake) && first) {
    return take(connection, *lease, request.number, gpu);
  }
  if (request.kind == wire::kShareUpload && !first) {
    Status status = (*lease)->streams().wants_attach();
    if (!status.ok()) return answer(connection, std::move(status), reply);
    return upload(connection, *lease, request);
  }
  if ((request.kind != wire::kShareOpen && request.kind != wire::kShareWay) || !first) {
    return answer(connection,
                  core::invalid("this request is not valid in the present state of the connection"),
                  reply);
  }
  const Result<engine::Shared> opened =
      (*lease)->with_session([&](engine::Session& session) -> Result<engine::Shared> {
        return session.uploads().share_new(request.bytes);
      });
  if (!opened.ok()) return answer(connection, opened.status(), reply);
  connection->lease = *lease;
  connection->share = opened->id;
  connection->hold = opened->hold;
  connection->way = request.kind == wire::kShareWay;
  reply.offset = opened->offset;
  reply.bytes = opened->bytes;
  answer(connection, {}, reply, UniqueFd(opened->descriptor));
}

// The stream gets a descriptor of its own; the watcher then drops the connection.
void ShareServer::run(const ConnectionRef& connection, const LeaseRef& lease,
                      std::uint64_t attach) {
  wire::ShareReply reply;
  auto place =
      leases_.stream_shares().enter(lease->client.user, lease->client.id, StreamShares::Kind::kRun);
  if (!place.ok()) return answer(connection, place.status(), reply);
  UniqueFd socket(fcntl(connection->socket.get(), F_DUPFD_CLOEXEC, 0));
  if (!socket) return answer(connection, system_error("a local stream"), reply);
  if (send_record(socket.get(), reply, -1)) {
    streams_->run(std::move(socket), lease, attach, std::move(*place));
  }
  connection->broken = true;
  finished(connection);
}

void ShareServer::take(const ConnectionRef& connection, const LeaseRef& lease, std::uint64_t seq,
                       bool gpu) {
  const auto shared = [this, connection, lease, seq, gpu](Status status) {
    {
      MutexLock lock(mutex_);
      takes_.erase(connection.get());
    }
    wire::ShareReply reply;
    if (!status.ok()) return answer(connection, status, reply);
    const Result<engine::Shared> share =
        lease->with_session([&](engine::Session& session) -> Result<engine::Shared> {
          return gpu ? session.downloads().share_copy(seq) : session.downloads().share(seq);
        });
    if (!share.ok()) return answer(connection, share.status(), reply);
    connection->lease = lease;
    connection->share = share->id;
    connection->hold = share->hold;
    reply.number = gpu ? share->gpu[0] : 0;
    reply.offset = gpu ? share->gpu[1] : share->offset;
    reply.bytes = share->bytes;
    answer(connection, {}, reply, UniqueFd(share->descriptor));
  };
  {
    MutexLock lock(mutex_);
    takes_[connection.get()] = {lease, seq};
  }
  const Status begun = lease->with_session([&](engine::Session& session) {
    // The callback may run in a lane, which must not copy shared memory itself.
    const std::uint64_t wait =
        session.downloads().begin(seq, [this, shared](const Result<engine::Fetched>& fetched) {
          Status status = fetched.ok() ? fetched->status : fetched.status();
          give([shared, status = std::move(status)] { shared(status); });
        });
    MutexLock lock(mutex_);
    const auto found = takes_.find(connection.get());  // None if the answer has been given.
    if (found != takes_.end()) found->second.wait = wait;
    return Status();
  });
  if (!begun.ok()) shared(begun);
}

void ShareServer::upload(const ConnectionRef& connection, const LeaseRef& lease,
                         const wire::ShareRequest& request) {
  wire::ShareReply reply;
  reply.number = request.number;
  if (connection->lease.lock() != lease) {
    return answer(connection,
                  core::invalid("the memory of this connection belongs to another session"), reply);
  }
  if (request.bytes > wire::kMaxShareUpload) {
    return answer(connection,
                  core::invalid("upload: one request has more than the maximum number of bytes"),
                  reply);
  }
  if (request.number != 0) return copy(connection, *lease, request, request.number);
  const core::Device device{static_cast<core::DeviceKind>(request.device / 256),
                            static_cast<std::uint8_t>(request.device % 256)};
  bool waits = false;
  const Status status = lease->with_session([&](engine::Session& session) -> Status {
    const Result<std::uint64_t> begun = session.uploads().begin(device, request.total);
    if (!begun.ok() && begun.status().code() != Code::kResourceExhausted) return begun.status();
    if (begun.ok()) {
      begin(*connection, session, *begun);
      return {};
    }
    // Idle memory of other sessions may have to be moved to disk first. No worker waits for that.
    waits = true;
    session.uploads().admit(
        device, request.total,
        [this, connection, lease, request](const Result<std::uint64_t>& admitted) {
          give([this, connection, lease, request, admitted] {
            if (!admitted.ok())
              return answer(connection, lease->advised(admitted.status()), wire::ShareReply{});
            const Status there = lease->with_session([&](engine::Session& again) {
              begin(*connection, again, *admitted);
              return Status();
            });
            if (!there.ok()) return answer(connection, there, wire::ShareReply{});
            copy(connection, *lease, request, *admitted);
          });
        });
    return {};
  });
  if (waits) return;
  if (!status.ok()) return answer(connection, status, reply);
  copy(connection, *lease, request, connection->upload);
}

void ShareServer::begin(Connection& connection, engine::Session& session, std::uint64_t upload) {
  if (connection.upload != 0) session.uploads().abort(connection.upload);
  connection.upload = upload;
}

void ShareServer::copy(const ConnectionRef& connection, Lease& lease,
                       const wire::ShareRequest& request, std::uint64_t number) {
  wire::ShareReply reply;
  reply.number = number;
  const Status status = lease.with_session([&](engine::Session& session) -> Status {
    if (number != connection->upload) {
      return Status(Code::kNotFound, "upload: it was not begun on this connection");
    }
    Status copied = session.uploads().write_shared(number, request.offset, connection->share,
                                                   request.from, request.bytes);
    const bool last = request.offset + request.bytes == request.total;
    if (copied.ok() && last) copied = session.uploads().finish(number);
    if (!copied.ok()) session.uploads().abort(number);
    if (!copied.ok() || last) connection->upload = 0;
    return copied;
  });
  answer(connection, status, reply);
}

}  // namespace teletensor::server
