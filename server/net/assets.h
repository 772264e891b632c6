// The dashboard's files, compiled into the daemon (cmake/embed.cmake).
#pragma once

#include <string_view>

namespace teletensor::server::assets {

extern const std::string_view kIndexHtml, kDashboardCss;
extern const std::string_view kDashboardJs, kPageJs, kOverviewJs, kSessionJs, kHistoryJs;
extern const std::string_view kChartJs;  // Chart.js, of Debian's libjs-chart.js

}  // namespace teletensor::server::assets
