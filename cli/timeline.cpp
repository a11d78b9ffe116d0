#include "timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <ostream>

namespace flashmoe::cli {

namespace {

double us_since(std::uint64_t begin_ns, std::uint64_t ns) { return static_cast<double>(ns - begin_ns) * 1e-3; }

nlohmann::json arguments_of(const TraceRecord& record) {
  switch (record.kind) {
    case TraceRecord::Kind::task:
      return {{record.task_kind == TaskKind::reduce ? "wave_slot" : "m_block", record.index}, {"tile", record.tile}};
    case TraceRecord::Kind::wait: return {{"waits_for_rank", record.peer}};
    case TraceRecord::Kind::work: break;
  }
  return nlohmann::json::object();
}

// Picture: a column of labels, then the time axis.
constexpr double kLeft = 120;
constexpr double kWidth = 1200;
constexpr double kHeadroom = 44;
constexpr std::size_t kManyRows = 200;  // from here on rows are low
constexpr double kNarrowest = 0.25;     // pixels of a span that is drawn by itself

/// Text as it stands in a picture's source.
std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '&')
      result += "&amp;";
    else if (c == '<')
      result += "&lt;";
    else if (c == '>')
      result += "&gt;";
    else
      result += c;
  }
  return result;
}

struct Colour {
  const char* name;
  const char* value;
};
constexpr Colour kColours[] = {{"up", "#0b5394"},
                               {"down", "#3d85c6"},
                               {"reduce", "#6fa8dc"},
                               {"work", "#38761d"},
                               {"waits for another rank", "#e69138"},
                               {"waits inside the rank", "#eeeeee"}};

const Colour& colour_of(const TraceRecord& record) {
  if (record.kind == TraceRecord::Kind::work) return kColours[3];
  if (record.kind == TraceRecord::Kind::wait) return kColours[is_remote(record.signal) ? 4 : 5];
  return kColours[record.task_kind == TaskKind::up ? 0 : record.task_kind == TaskKind::down ? 1 : 2];
}

/// Spans of one colour, one after another, that together are wide enough to see.
struct Bar {
  const Colour* colour = nullptr;
  std::uint64_t begin_ns = 0;
  std::uint64_t end_ns = 0;
  std::string label;
  int num_spans = 0;
};

class SvgRows {
 public:
  SvgRows(std::ostream& stream, const TimelineBounds& bounds, double row_height)
      : stream_(stream),
        bounds_(bounds),
        scale_(kWidth / std::max(1.0, us_since(bounds.begin_ns, bounds.end_ns))),
        row_height_(row_height) {}

  void draw(const ActorTrace& actor, double y) {
    Bar bar;
    for (const TraceRecord& record : actor.records) {
      const Colour& colour = colour_of(record);
      const bool narrow =
          width(bar.begin_ns, bar.end_ns) < kNarrowest || width(record.begin_ns, record.end_ns) < kNarrowest;
      if (bar.num_spans > 0 && bar.colour == &colour && narrow && width(bar.end_ns, record.begin_ns) < kNarrowest) {
        bar.end_ns = record.end_ns;
        ++bar.num_spans;
        continue;
      }
      put(bar, y);
      bar = {.colour = &colour,
             .begin_ns = record.begin_ns,
             .end_ns = record.end_ns,
             .label = name_of(record),
             .num_spans = 1};
    }
    put(bar, y);
  }

 private:
  double width(std::uint64_t begin_ns, std::uint64_t end_ns) const {
    return end_ns > begin_ns ? us_since(begin_ns, end_ns) * scale_ : 0;
  }

  void put(const Bar& bar, double y) {
    if (bar.num_spans == 0) return;
    const std::string more = bar.num_spans > 1 ? fmt::format(" and {} more", bar.num_spans - 1) : "";
    stream_ << fmt::format(
        "<rect x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\"><title>{}{}: {:.1f} us from "
        "{:.1f} us</title></rect>\n",
        kLeft + us_since(bounds_.begin_ns, bar.begin_ns) * scale_, y + 1,
        std::max(0.1, width(bar.begin_ns, bar.end_ns)), 0.86 * row_height_, bar.colour->value, bar.label, more,
        us_since(bar.begin_ns, bar.end_ns), us_since(bounds_.begin_ns, bar.begin_ns));
  }

  std::ostream& stream_;
  TimelineBounds bounds_;
  double scale_;  // pixels a us
  double row_height_;
};

/// Such an actor has no row of its own in a picture: a GPU has hundreds that found no tokens. Of one whose spans did
/// not all fit nobody knows.
bool only_waits(const ActorTrace& actor) {
  return actor.num_dropped == 0 &&
         std::all_of(actor.records.begin(), actor.records.end(),
                     [](const TraceRecord& record) { return record.kind == TraceRecord::Kind::wait; });
}

void write_legend(std::ostream& stream) {
  double x = kLeft;
  for (const Colour& colour : kColours) {
    stream << fmt::format(
        "<rect x=\"{}\" y=\"24\" width=\"10\" height=\"10\" fill=\"{}\" stroke=\"#999\" stroke-width=\"0.5\"/>"
        "<text x=\"{}\" y=\"33\">{}</text>\n",
        x, colour.value, x + 14, colour.name);
    x += 34 + 6.2 * static_cast<double>(std::string_view(colour.name).size());
  }
}

void write_axis(std::ostream& stream, double total_us, double y) {
  constexpr int kTicks = 8;
  for (int tick = 0; tick <= kTicks; ++tick) {
    const double x = kLeft + kWidth * tick / kTicks;
    stream << fmt::format(
        "<line x1=\"{0}\" y1=\"{1}\" x2=\"{0}\" y2=\"{2}\" stroke=\"#bbb\" stroke-width=\"0.5\"/>"
        "<text x=\"{0}\" y=\"{3}\" text-anchor=\"middle\">{4:.0f} us</text>\n",
        x, kHeadroom, y, y + 12, total_us * tick / kTicks);
  }
}

}  // namespace

std::uint64_t num_dropped(const std::vector<RankTrace>& ranks) {
  std::uint64_t sum = 0;
  for (const RankTrace& rank : ranks) {
    for (const ActorTrace& actor : rank.actors) sum += actor.num_dropped;
  }
  return sum;
}

TimelineBounds bounds_of(const std::vector<RankTrace>& ranks) {
  TimelineBounds bounds{.begin_ns = std::numeric_limits<std::uint64_t>::max(), .end_ns = 0};
  for (const RankTrace& rank : ranks) {
    for (const ActorTrace& actor : rank.actors) {
      if (actor.records.empty()) continue;
      bounds.begin_ns = std::min(bounds.begin_ns, actor.records.front().begin_ns);
      bounds.end_ns = std::max(bounds.end_ns, actor.records.back().end_ns);
    }
  }
  return bounds.end_ns == 0 ? TimelineBounds{} : bounds;
}

std::string name_of(const TraceRecord& record) {
  switch (record.kind) {
    case TraceRecord::Kind::work: return "work";
    case TraceRecord::Kind::wait: return fmt::format("wait: {}", to_string(record.signal));
    case TraceRecord::Kind::task: break;
  }
  switch (record.task_kind) {
    case TaskKind::up: return "up";
    case TaskKind::down: return "down";
    case TaskKind::reduce: return "reduce";
    case TaskKind::exit: break;
  }
  return "exit";
}

std::string role_of(const ActorTrace& actor) {
  return std::string(actor.actor == Actor::processor ? to_string(actor.part) : to_string(actor.actor));
}

std::string name_of(const ActorTrace& actor) {
  const std::string name = fmt::format("{} {}", role_of(actor), actor.index);
  if (actor.sm < 0) return name;
  return actor.part == ProcessorPart::consumer ? fmt::format("SM {} {}.{}", actor.sm, name, actor.warpgroup)
                                               : fmt::format("SM {} {}", actor.sm, name);
}

void write_chrome(const std::vector<RankTrace>& ranks, std::ostream& stream) {
  const TimelineBounds bounds = bounds_of(ranks);
  const char* separator = "\n";
  const auto put = [&](const nlohmann::json& event) {
    stream << separator << event.dump();
    separator = ",\n";
  };
  stream << "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [";
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    put({{"ph", "M"}, {"name", "process_name"}, {"pid", rank}, {"args", {{"name", fmt::format("rank {}", rank)}}}});
    for (std::size_t thread = 0; thread < ranks[rank].actors.size(); ++thread) {
      const ActorTrace& actor = ranks[rank].actors[thread];
      put({{"ph", "M"}, {"name", "thread_name"}, {"pid", rank}, {"tid", thread}, {"args", {{"name", name_of(actor)}}}});
      for (const TraceRecord& record : actor.records) {
        put({{"ph", "X"},
             {"name", name_of(record)},
             {"cat", record.kind == TraceRecord::Kind::wait ? "wait" : role_of(actor)},
             {"pid", rank},
             {"tid", thread},
             {"ts", us_since(bounds.begin_ns, record.begin_ns)},
             {"dur", us_since(record.begin_ns, record.end_ns)},
             {"args", arguments_of(record)}});
      }
    }
  }
  stream << "\n], \"otherData\": " << nlohmann::json{{"dropped_spans", num_dropped(ranks)}}.dump() << "}\n";
}

void write_svg(const std::vector<RankTrace>& ranks, const std::string& title, std::ostream& stream) {
  const TimelineBounds bounds = bounds_of(ranks);
  std::size_t num_rows = 0;
  std::size_t num_idle = 0;
  for (const RankTrace& rank : ranks) {
    const auto idle = static_cast<std::size_t>(std::count_if(rank.actors.begin(), rank.actors.end(), only_waits));
    num_rows += rank.actors.size() - idle + 1;
    num_idle += idle;
  }
  const double row_height = num_rows > kManyRows ? 6 : 14;
  const double height = kHeadroom + row_height * static_cast<double>(num_rows) + 20;
  std::string notes;
  if (num_idle > 0) notes += fmt::format("; actors that only waited, not drawn: {}", num_idle);
  if (const std::uint64_t dropped = num_dropped(ranks); dropped > 0) {
    notes += fmt::format("; {} spans did not fit: rows marked * end early (--records)", dropped);
  }
  stream << fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"10\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"8\" y=\"14\" font-size=\"12\">{2}{3}</text>\n",
      kLeft + kWidth + 40, height, escaped(title), notes);
  write_legend(stream);
  SvgRows rows(stream, bounds, row_height);
  const double font_size = std::min(10.0, 0.9 * row_height);
  const auto label = [&](double x, double y, const char* style, const std::string& text) {
    stream << fmt::format("<text x=\"{}\" y=\"{:.1f}\" font-size=\"{:.1f}\"{}>{}</text>\n", x, y + 0.75 * row_height,
                          font_size, style, text);
  };
  double y = kHeadroom;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    label(8, y, " font-weight=\"bold\"", fmt::format("rank {}", rank));
    y += row_height;
    for (const ActorTrace& actor : ranks[rank].actors) {
      if (only_waits(actor)) continue;
      label(16, y, "", name_of(actor) + (actor.num_dropped > 0 ? " *" : ""));
      rows.draw(actor, y);
      y += row_height;
    }
  }
  write_axis(stream, us_since(bounds.begin_ns, bounds.end_ns), y);
  stream << "</svg>\n";
}

}  // namespace flashmoe::cli
