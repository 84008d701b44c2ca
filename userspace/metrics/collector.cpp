// SPDX-License-Identifier: Apache-2.0
#include "vxdp/metrics/collector.hpp"

#include <fcntl.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <sstream>
#include <utility>

namespace vxdp {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

struct QueueRow {
  const char* name;
  const char* help;
  Counter QueueCounters::*field;
};
constexpr QueueRow kQueueRows[] = {
    {"vxdp_queue_frames_total", "Frames delivered to the other side.", &QueueCounters::frames},
    {"vxdp_queue_bytes_total", "Bytes of delivered frames, virtio-net header excluded.", &QueueCounters::bytes},
    {"vxdp_queue_batches_total", "Groups of frames published together.", &QueueCounters::batches},
    {"vxdp_queue_kicks_total", "Notifications received from the guest.", &QueueCounters::kicks},
    {"vxdp_queue_calls_total", "Notifications sent to the guest.", &QueueCounters::calls},
    {"vxdp_queue_calls_suppressed_total", "Notifications not sent because the guest asked for none.",
     &QueueCounters::calls_suppressed},
    {"vxdp_queue_syscalls_total", "Entries into the kernel to move frames.", &QueueCounters::syscalls},
    {"vxdp_queue_ring_full_total", "Times frames waited because the guest had no buffer.", &QueueCounters::ring_full},
    {"vxdp_queue_ring_broken_total", "Times the ring was found impossible and stopped.", &QueueCounters::ring_broken},
    {"vxdp_queue_native_frames_total", "Frames that met an XDP program on the native path.", &QueueCounters::native},
    {"vxdp_queue_generic_frames_total", "Frames that met an XDP program as an skb.", &QueueCounters::generic},
};

struct SessionRow {
  const char* name;
  const char* help;
  Counter SessionCounters::*field;
};
constexpr SessionRow kSessionRows[] = {
    {"vxdp_session_connects_total", "Times a front-end connected.", &SessionCounters::connects},
    {"vxdp_session_disconnects_total", "Times a front-end went away.", &SessionCounters::disconnects},
    {"vxdp_session_messages_total", "vhost-user messages handled.", &SessionCounters::messages},
    {"vxdp_session_bad_messages_total", "vhost-user messages refused.", &SessionCounters::bad_messages},
};

struct WorkerRow {
  const char* name;
  const char* help;
  Counter WorkerCounters::*field;
  double unit;  // of one count, in the unit the name says
};
constexpr double kNanosecond = 1e-9;
constexpr WorkerRow kWorkerRows[] = {
    {"vxdp_worker_busy_seconds_total", "Time in rounds that moved frames.", &WorkerCounters::busy_ns, kNanosecond},
    {"vxdp_worker_poll_seconds_total", "Time awake in rounds that moved none.", &WorkerCounters::poll_ns, kNanosecond},
    {"vxdp_worker_sleeps_total", "Times the worker went to sleep.", &WorkerCounters::sleeps, 1},
};

constexpr std::pair<SessionState, const char*> kSessionStates[] = {
    {SessionState::kWaiting, "waiting"}, {SessionState::kConnected, "connected"}, {SessionState::kRunning, "running"}};

constexpr const char* kDropLabels[] = {
#define VXDP_LABEL(number, name, label, meaning) label,
    VXDP_DROP_REASONS(VXDP_LABEL)
#undef VXDP_LABEL
};
constexpr const char* kActionLabels[kXdpActions] = {"aborted", "drop", "pass", "tx", "redirect"};

MetricFamily counters(const char* name, const char* help) {
  return {name, help, MetricType::Counter, {}};
}
MetricFamily gauges(const char* name, const char* help) {
  return {name, help, MetricType::Gauge, {}};
}

ClientMetric& add(MetricFamily& family, Labels labels) {
  family.metric.emplace_back();
  family.metric.back().label = std::move(labels);
  return family.metric.back();
}
void add_counter(MetricFamily& family, Labels labels, double value) {
  add(family, std::move(labels)).counter.value = value;
}
void add_gauge(MetricFamily& family, Labels labels, double value) {
  add(family, std::move(labels)).gauge.value = value;
}
double number(std::uint64_t value) {
  return static_cast<double>(value);
}

Labels with(Labels labels, const char* name, std::string_view value) {
  labels.push_back({name, std::string(value)});
  return labels;
}

/// One direction of one queue pair, as a scrape sees it.
struct QueueView {
  Labels labels;
  const QueueCounters& counters;
  double frames_per_second;
};

using Ports = std::vector<std::shared_ptr<PortMetrics>>;

std::vector<QueueView> queue_views(const Ports& ports) {
  std::vector<QueueView> views;
  for (const auto& port : ports) {
    for (std::size_t i = 0; i < port->queues.size(); ++i) {
      const QueuePairMetrics& pair = port->queues[i];
      const std::string queue = std::to_string(i);
      const auto labels = [&](const char* direction) {
        return Labels{{"port", port->port}, {"direction", direction}, {"queue", queue}};
      };
      views.push_back({labels("from_guest"), pair.from_guest, pair.from_guest_fps.load(std::memory_order_relaxed)});
      views.push_back({labels("to_guest"), pair.to_guest, pair.to_guest_fps.load(std::memory_order_relaxed)});
    }
  }
  return views;
}

MetricFamily batch_sizes(const std::vector<QueueView>& queues) {
  MetricFamily family{"vxdp_queue_batch_size", "Frames in a batch.", MetricType::Histogram, {}};
  for (const QueueView& queue : queues) {
    auto& histogram = add(family, queue.labels).histogram;
    for (std::size_t i = 0; i < BatchHistogram::kBuckets; ++i) {
      histogram.sample_count += queue.counters.batch_size.buckets[i].read();
      histogram.bucket.push_back({histogram.sample_count, number(std::uint64_t{1} << i)});
    }
    histogram.sample_sum = number(queue.counters.frames.read());
  }
  return family;
}

void collect_queues(const Ports& ports, std::vector<MetricFamily>& out) {
  const auto queues = queue_views(ports);
  for (const QueueRow& row : kQueueRows) {
    auto family = counters(row.name, row.help);
    for (const QueueView& queue : queues) {
      add_counter(family, queue.labels, number((queue.counters.*row.field).read()));
    }
    out.push_back(std::move(family));
  }
  out.push_back(batch_sizes(queues));
  auto drops = counters("vxdp_queue_drops_total", "Frames dropped by the daemon, by reason.");
  auto rates = gauges("vxdp_queue_frames_per_second", "Frames delivered in the last second.");
  for (const QueueView& queue : queues) {
    for (std::size_t reason = VXDP_DROP_NONE + 1; reason < VXDP_DROP_REASON_COUNT; ++reason) {
      add_counter(drops, with(queue.labels, "reason", kDropLabels[reason]),
                  number(queue.counters.drops[reason].read()));
    }
    add_gauge(rates, queue.labels, queue.frames_per_second);
  }
  out.push_back(std::move(drops));
  out.push_back(std::move(rates));
}

void accumulate(std::vector<std::uint64_t>& sum, const std::vector<std::uint64_t>& counts) {
  sum.resize(std::max(sum.size(), counts.size()));
  for (std::size_t i = 0; i < counts.size(); ++i) {
    sum[i] += counts[i];
  }
}

void collect_programs(const Ports& ports, std::vector<MetricFamily>& out) {
  auto frames = counters("vxdp_program_frames_total", "Frames by the action an XDP program chose.");
  auto bytes = counters("vxdp_program_bytes_total", "Bytes by the action an XDP program chose.");
  auto drops = counters("vxdp_program_drops_total", "Frames an XDP program dropped, by reason.");
  auto attached = gauges("vxdp_program_attached", "1 for the XDP program attached to the port's interface.");
  for (const auto& port : ports) {
    if (!port->programs) {
      continue;
    }
    // Two versions of a file have one name; a series may appear only once, so they are one series.
    std::map<std::string, ProgramStats> by_name;
    for (const ProgramStats& stats : port->programs->program_stats()) {
      ProgramStats& sum = by_name[stats.program];
      accumulate(sum.action_frames, stats.action_frames);
      accumulate(sum.action_bytes, stats.action_bytes);
      accumulate(sum.drop_frames, stats.drop_frames);
      if (stats.attached) {
        add_gauge(attached,
                  {{"port", port->port},
                   {"program", stats.program},
                   {"tag", stats.tag},
                   {"mode", stats.native ? "native" : "generic"}},
                  1);
      }
    }
    for (const auto& [name, sum] : by_name) {
      const Labels labels{{"port", port->port}, {"program", name}};
      for (std::size_t i = 0; i < std::min(kXdpActions, sum.action_frames.size()); ++i) {
        add_counter(frames, with(labels, "action", kActionLabels[i]), number(sum.action_frames[i]));
      }
      for (std::size_t i = 0; i < std::min(kXdpActions, sum.action_bytes.size()); ++i) {
        add_counter(bytes, with(labels, "action", kActionLabels[i]), number(sum.action_bytes[i]));
      }
      for (std::size_t i = VXDP_DROP_NONE + 1; i < std::min(std::size(kDropLabels), sum.drop_frames.size()); ++i) {
        add_counter(drops, with(labels, "reason", kDropLabels[i]), number(sum.drop_frames[i]));
      }
    }
  }
  for (auto* family : {&frames, &bytes, &drops, &attached}) {
    out.push_back(std::move(*family));
  }
}

void collect_sessions(const Ports& ports, std::vector<MetricFamily>& out) {
  for (const SessionRow& row : kSessionRows) {
    auto family = counters(row.name, row.help);
    for (const auto& port : ports) {
      add_counter(family, {{"port", port->port}}, number((port->session.*row.field).read()));
    }
    out.push_back(std::move(family));
  }
  auto states = gauges("vxdp_session_state", "1 for the state the port's vhost-user session is in.");
  auto submits = gauges("vxdp_port_submit_info", "How the port hands batches to the kernel.");
  for (const auto& port : ports) {
    const int current = port->session.state.load(std::memory_order_relaxed);
    for (const auto& [state, label] : kSessionStates) {
      add_gauge(states, {{"port", port->port}, {"state", label}}, static_cast<int>(state) == current ? 1 : 0);
    }
    add_gauge(submits, {{"port", port->port}, {"method", port->submit.load(std::memory_order_relaxed)}}, 1);
  }
  out.push_back(std::move(states));
  out.push_back(std::move(submits));
}

void collect_workers(const MetricsRegistry& registry, std::vector<MetricFamily>& out) {
  const auto workers = registry.workers();
  for (const WorkerRow& row : kWorkerRows) {
    auto family = counters(row.name, row.help);
    for (std::size_t i = 0; i < workers.size(); ++i) {
      add_counter(family, {{"worker", std::to_string(i)}}, number(((*workers[i]).*row.field).read()) * row.unit);
    }
    out.push_back(std::move(family));
  }
}

/// The process_* families every Prometheus client library offers. Source: proc(5), /proc/PID/stat.
void collect_process(std::vector<MetricFamily>& out) {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  // Field 2 is the program's name in parentheses and may itself hold spaces; field 3 follows the last ')'.
  std::istringstream rest(line.substr(std::min(line.size(), line.rfind(')') + 2)));
  std::vector<std::string> fields(std::istream_iterator<std::string>{rest}, {});
  const auto field = [&fields](std::size_t number_in_manual) {
    const std::size_t index = number_in_manual - 3;
    return index < fields.size() ? std::strtod(fields[index].c_str(), nullptr) : 0.0;
  };
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  auto cpu = counters("process_cpu_seconds_total", "CPU time of the daemon, user and system.");
  add_counter(cpu, {}, (field(14) + field(15)) / ticks);
  out.push_back(std::move(cpu));
  std::ifstream system("/proc/stat");
  double boot_time = 0;  // seconds since 1970; field 22 counts from there
  for (std::string key; system >> key && key != "btime";) {
    system.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  system >> boot_time;
  auto start = gauges("process_start_time_seconds", "When the daemon started, seconds since 1970.");
  add_gauge(start, {}, boot_time + field(22) / ticks);
  out.push_back(std::move(start));
  auto memory = gauges("process_resident_memory_bytes", "Resident memory, shared guest memory included.");
  add_gauge(memory, {}, field(24) * static_cast<double>(::sysconf(_SC_PAGESIZE)));
  out.push_back(std::move(memory));
  std::error_code error;
  const std::filesystem::directory_iterator open_fds("/proc/self/fd", error);
  if (!error) {
    auto fds = gauges("process_open_fds", "Open descriptors.");
    add_gauge(fds, {}, static_cast<double>(std::distance(begin(open_fds), end(open_fds))));
    out.push_back(std::move(fds));
  }
}

}  // namespace

std::string_view drop_reason_label(std::size_t reason) noexcept {
  return reason < std::size(kDropLabels) ? kDropLabels[reason] : "unknown";
}

std::string_view xdp_action_label(std::size_t action) noexcept {
  return action < kXdpActions ? kActionLabels[action] : "unknown";
}

std::string metrics_text(const MetricsRegistry& registry, std::string_view version) {
  std::vector<MetricFamily> families;
  const auto ports = registry.ports();
  collect_queues(ports, families);
  collect_programs(ports, families);
  collect_sessions(ports, families);
  collect_workers(registry, families);
  collect_process(families);
  auto build = gauges("vxdp_build_info", "1; the label says which version runs.");
  add_gauge(build, {{"version", std::string(version)}}, 1);
  families.push_back(std::move(build));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace vxdp
