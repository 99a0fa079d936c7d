// Exchange: packets of any size between all ranks, through slots of the receivers' staging.
//
// Vocabulary: a *stream* is an ordered sequence of packets from one rank to another; every ordered
// pair of ranks has the same number of streams. Packets are the units of a Flow (engine/flow.h), in
// which each stream has a line with a fixed number of slots: the sender fills the slot of the next
// packet and says how many bytes landed; the receiver reads them where they lie and releases the
// slot, which is granted again. How many packets a stream has, both ends know beforehand; how large
// each is, only its sender.
//
// Memory: slots are all there is, (world - 1) * sum of slots * slot_bytes. Nothing here blocks but
// wait(), and only when there is nothing to do, so ranks cannot wait in a ring. Deadlines, dead
// peers and Ctrl-C are the communicator's. On a transport without payload packets keep their sizes
// and have no bytes.
//
// What it is not: aware of what packets hold. Called by the collectives that cannot be planned,
// within a call of the communicator.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "base/span.h"
#include "comm/communicator.h"
#include "engine/copier.h"
#include "engine/flow.h"

namespace hybridengine {

class Exchange {
 public:
  /// `num_slots` are those of each stream. `plan` is a digest of what the ranks agreed on: a peer
  /// that does something else is a TransportError. All of it is alike on all ranks.
  Exchange(Communicator& comm, uint64_t plan, size_t slot_bytes, std::vector<int> num_slots);

  /// How many packets the stream from and to a peer has. Before start().
  void expect(Rank peer, int stream, int64_t num_packets);
  void promise(Rank peer, int stream, int64_t num_packets);
  /// Grants the first slots. Throws UsageError where there is no memory for them.
  void start();

  /// Takes what has arrived. Throws as Communicator::drain does.
  void poll();

  /// Whether the next packet of the stream to `peer` may be written now.
  bool may_send(Rank peer, int stream) const;
  /// Where: slot_bytes, and kSlack more that may be overwritten; no address without payload. It is
  /// sent before another one is asked for.
  Span next_slot(Rank peer, int stream);
  /// It has been written.
  void send(Rank peer, int stream, size_t bytes);

  /// The oldest packet from `peer` that has landed, until release(); null while there is none.
  const Span* landed(Rank peer, int stream) const;
  void release(Rank peer, int stream);

  /// Whether every packet was sent, and every one released.
  bool done() const { return flow_.done(); }
  /// Until something arrives. `doing` is for errors: "arrival of contributions". Throws as
  /// Communicator::wait does.
  void wait(const std::string& doing);

  int64_t sent_bytes() const { return sent_bytes_; }
  int64_t staging_bytes() const { return static_cast<int64_t>(flow_.slots().num_bytes()); }

  /// Room behind each slot: vector code reads and writes past the end of a packet.
  static constexpr size_t kSlack = 128;

 private:
  /// Those of a stream, numbered from 0 between the two ranks.
  struct Packets {
    int32_t first_unit = 0;
    int64_t count = 0;
    int64_t through = 0;  // sent, or released

    int32_t unit(int64_t packet) const { return first_unit + static_cast<int32_t>(packet); }
    int32_t next() const { return unit(through); }
  };
  struct Incoming {
    Packets packets;
    std::deque<Span> landed;  // not released
  };

  /// Also the number of the line.
  int32_t stream_of(Rank peer, int stream) const {
    return peer * static_cast<int32_t>(num_slots_.size()) + stream;
  }
  Packets make_packets(int64_t count);
  Flow::Name name_of(Rank peer, int stream, int64_t packet) const;
  void grant(int32_t line);
  bool take(const Message& message, Rank peer);
  bool take_landed(Incoming& from, const Message& message);

  void settle();

  struct Leaving {  // a packet that is put
    Copier::Ticket ticket;
    int32_t unit = -1;
  };

  Communicator& comm_;
  uint64_t plan_;
  size_t slot_bytes_;
  std::vector<int> num_slots_;
  Flow flow_;
  Copier copier_;
  std::byte* room_ = nullptr;  // that next_slot() gave
  std::vector<Leaving> leaving_;
  int32_t num_units_ = 0;
  std::vector<Incoming> incoming_;  // by peer and stream
  std::vector<Packets> outgoing_;   // the same
  int64_t sent_bytes_ = 0;
  std::vector<Arrival> arrivals_;
};

}  // namespace hybridengine
