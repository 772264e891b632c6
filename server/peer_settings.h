// Checks the settings that let this daemon work together with other daemons.
#pragma once

#include "server/config.h"
#include "server/peer/peer_options.h"

namespace teletensor::server {

// InvalidArgument names the setting that is wrong or missing.
core::Result<PeerOptions> peer_options(const Config& config);

}  // namespace teletensor::server
