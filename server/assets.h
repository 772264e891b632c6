// The dashboard's files, compiled into the daemon (cmake/embed.cmake).
#pragma once

#include <string_view>

namespace teletensor::server::assets {

extern const std::string_view kIndexHtml, kDashboardJs, kDashboardCss;
extern const std::string_view kChartJs;  // Chart.js, of Debian's libjs-chart.js

}  // namespace teletensor::server::assets
