// A program in words: what HYBRIDENGINE_DUMP prints.
//
// Kinds of lines: what this rank copies within itself, a line for each part that it receives and
// sends, a line for each fold. A part's line ends with how it goes.
#include "base/error.h"
#include "engine/program.h"

namespace hybridengine {
namespace {

std::string counted(size_t count, std::string_view what) {
  return str_cat(count, " ", what, count == 1 ? "" : "s");
}

/// How a part goes where its destination lies in memory that only its own rank maps.
std::string_view way_in(Manner manner) {
  constexpr std::string_view kWays[] = {"through a slot", "read where it lies there",
                                        "written into its places by the sender"};
  return kWays[static_cast<size_t>(manner)];
}

std::string_view way_out(Manner manner) {
  constexpr std::string_view kWays[] = {"through a slot", "read from here by the receiver",
                                        "written into its places there"};
  return kWays[static_cast<size_t>(manner)];
}

int64_t bytes_of(std::span<const Part> parts, std::span<const int32_t> ids) {
  int64_t bytes = 0;
  for (const int32_t id : ids) bytes += parts[id].payload_bytes;
  return bytes;
}

}  // namespace

std::string Program::text_of(int32_t id) const {
  const Part& part = parts_[id];
  const bool comes = part.dst == rank_;
  const bool contributes = reduces_ && part.step == 0;  // and is converted once it is combined
  std::string text = str_cat("  ", comes ? "from" : "to", " rank ", comes ? part.src : part.dst,
                             ": ", describe(id), ": ", part.payload_bytes, " bytes in ",
                             part.copies.size(), part.copies.size() == 1 ? " copy" : " copies");
  if (part.feeds >= 0)
    text += str_cat(", a contribution to fold ", part.feeds);
  else if (contributes)
    text += ", a contribution to a fold there";
  else if (part.gate >= 0)
    text += str_cat(", the result of fold ", part.gate);
  else if (reduces_)
    text += ", the result of a fold there";
  return str_cat(text, part.plain || contributes ? "" : ", converted on the way", ", ",
                 comes ? way_in(part.manner) : way_out(part.manner), "\n");
}

std::string Program::to_string() const {
  int64_t kept_bytes = 0;
  size_t kept = 0;
  for (const std::vector<Copy>& copies : local_copies_)
    for (const Copy& copy : copies) kept_bytes += copy.wire_bytes(), ++kept;
  std::string text = str_cat(
      "program of rank ", rank_, ": ", src_layout().text(), " -> ", dst_layout().text(), "\n",
      counted(static_cast<size_t>(num_sources_), "source tensor"), ", ",
      counted(static_cast<size_t>(num_targets()), "destination tensor"), "\n",
      "A part goes as its line says, or, where its destination lies in memory that both ranks map, "
      "is written into its places by the sender.\n",
      "copies ", kept_bytes, " bytes of its own, in ", kept, kept == 1 ? " copy" : " copies", "\n");
  text += str_cat("receives ", bytes_of(parts_, incoming_), " bytes in ",
                  counted(incoming_.size(), "part"), "\n");
  for (const int32_t id : incoming_) text += text_of(id);
  text += str_cat("sends ", bytes_of(parts_, outgoing_), " bytes in ",
                  counted(outgoing_.size(), "part"), "\n");
  for (const int32_t id : outgoing_) text += text_of(id);
  for (size_t i = 0; i < folds_.size(); ++i)
    text += str_cat("fold ", i, ": combines ", counted(folds_[i].parts.size(), "contribution"),
                    ", in rank order, in ", folds_[i].boxes.size(),
                    folds_[i].boxes.size() == 1 ? " box" : " boxes", "; a slot holds ",
                    folds_[i].pitch_bytes, " bytes of each\n");
  return text;
}

}  // namespace hybridengine
