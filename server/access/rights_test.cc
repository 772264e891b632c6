#include "server/access/rights.h"

#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "grpc/reflection/v1alpha/reflection.pb.h"
#include "teletensor/v1/admin.pb.h"
#include "teletensor/v1/session.pb.h"
#include "teletensor/v1/store.pb.h"

namespace teletensor::server {
namespace {

TEST(Rights, EveryMethodOfTheServicesStandsInTheTable) {
  std::set<std::string> methods, known;
  for (const auto* file :
       {v1::HelloRequest::descriptor()->file(), v1::SessionsRequest::descriptor()->file(),
        v1::StoreOpenRequest::descriptor()->file(),
        grpc::reflection::v1alpha::ServerReflectionRequest::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      const auto* service = file->service(s);
      for (int m = 0; m < service->method_count(); ++m) {
        methods.insert("/" + service->full_name() + "/" + service->method(m)->name());
      }
    }
  }
  for (const MethodRight& entry : rights()) {
    EXPECT_TRUE(known.insert(std::string(entry.method)).second) << entry.method << " twice";
    const bool rpc = entry.method.starts_with("/");
    EXPECT_EQ(methods.count(std::string(entry.method)), rpc ? 1u : 0u) << entry.method;
  }
  for (const std::string& method : methods) EXPECT_TRUE(known.count(method)) << method;
  EXPECT_GE(methods.size(), 13u);
}

TEST(Rights, WhatIsNotInTheTableIsRefusedToEverybody) {
  for (const Role role : {Role::kNobody, Role::kMetrics, Role::kUser, Role::kAdmin}) {
    EXPECT_FALSE(check_right("/teletensor.v1.Admin/New", {"somebody", role}).ok());
    EXPECT_FALSE(check_right("GET /new", {"somebody", role}).ok());
  }
}

TEST(Rights, NobodyAndMetrics) {
  for (const MethodRight& entry : rights()) {
    const bool open = check_right(entry.method, {}).ok();
    EXPECT_EQ(open, entry.right == Right::kPublic) << entry.method;
    EXPECT_EQ(check_right(entry.method, {}).code(), open ? core::Code::kOk : kUnauthenticated);
    const Caller monitor{"prometheus", Role::kMetrics};
    EXPECT_EQ(check_right(entry.method, monitor).ok(), entry.right <= Right::kMetrics);
    if (entry.method.starts_with("/teletensor.v1.Compute/")) {
      EXPECT_EQ(check_right(entry.method, monitor).ok(), entry.method.ends_with("Describe"));
    }
    EXPECT_TRUE(check_right(entry.method, {"root", Role::kAdmin}).ok());
  }
}

TEST(Rights, Names) {
  for (const Role role : {Role::kMetrics, Role::kUser, Role::kAdmin}) {
    EXPECT_EQ(role_of(to_string(role)), role);
  }
  for (const char* text : {"", "nobody", "Admin", "root", "admin "}) {
    EXPECT_EQ(role_of(text), Role::kNobody) << text;
  }
}

}  // namespace
}  // namespace teletensor::server
