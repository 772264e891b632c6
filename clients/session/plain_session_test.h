// PlainSession is a session for tests whose client has no hooks, Functions or checkpoints.
#pragma once

#include "clients/session/session.h"

namespace teletensor::client {

class PlainSession : public Session {
 public:
  using Session::Session;

 protected:
  void note_site(std::uint64_t) override {}
  core::Result<Var> run_hook(autograd::HookId, const Var& g) override { return g; }
  Status run_function(autograd::Node&, std::span<Var>, std::span<Var>) override {
    return core::internal("no functions here");
  }
  core::Result<autograd::Node*> again(autograd::Node&) override {
    return core::internal("no checkpoints here");
  }
};

}  // namespace teletensor::client
