// The files of the dashboard, which cmake/embed.cmake compiles into the daemon.
#pragma once

#include <string_view>

namespace teletensor::server::assets {

extern const std::string_view kIndexHtml, kDashboardCss;
extern const std::string_view kDashboardJs, kPageJs, kOverviewJs, kSessionJs, kHistoryJs;
extern const std::string_view kChartJs;  // Chart.js, from the Debian package libjs-chart.js.

}  // namespace teletensor::server::assets
