// Messages that carry rows of tensors from rank to rank while other rows are processed.
#pragma once

#include <functional>
#include <list>
#include <thread>
#include <utility>

#include "attn/core/tensor/dtype_view.h"
#include "attn/executor.h"
#include "attn/mpi/communicator.h"

namespace attn::detail {

/// The MPI datatype of some rows of all heads of a tensor, with any strides. Elements are sent as bytes, because all
/// ranks represent them the same way.
class RowsType {
 public:
  /// `View` is a DTypeView, or another type with data() and sizes like one.
  template <class View>
  explicit RowsType(const View& rows) {
    const Index size = rows.size_of_element();
    MPI_Datatype type = MPI_BYTE;
    check_mpi(MPI_Type_contiguous(static_cast<int>(size), MPI_BYTE, &type), "MPI_Type_contiguous");
    constexpr const char* kWhat[] = {"batch elements", "heads", "rows on a rank", "elements in a row"};
    for (const int dimension : {3, 2, 1, 0}) {
      const int count = mpi_count(rows.dim(dimension), kWhat[dimension]);
      MPI_Datatype of_more = MPI_DATATYPE_NULL;
      const int code = MPI_Type_create_hvector(count, 1, rows.stride(dimension) * size, type, &of_more);
      MPI_Type_free(&type);
      check_mpi(code, "MPI_Type_create_hvector");
      type = of_more;
    }
    type_ = type;
    check_mpi(MPI_Type_commit(&type_), "MPI_Type_commit");
  }
  RowsType(const RowsType&) = delete;
  ~RowsType() { MPI_Type_free(&type_); }

  MPI_Datatype get() const { return type_; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

/// The content of a message. Messages of the same kind, from one rank to another, arrive in the order in which they
/// were sent.
enum class MessageKind { keys, values, key_gradients, value_gradients, rows };

/// The pending messages of a call. They make progress only in poll(), which the calling thread calls between its tasks.
/// There is no progress thread, so that MPI_THREAD_FUNNELED is enough.
class Messages {
 public:
  explicit Messages(const Communicator& comm) : comm_(comm) {}
  Messages(const Messages&) = delete;
  /// Waits for messages that are still pending when an exception propagates: MPI would otherwise write to freed memory.
  ~Messages() {
    for (Message& m : pending_) MPI_Wait(&m.request, MPI_STATUS_IGNORE);
  }

  /// Adds 1 to `pending`, and subtracts 1 when the rows have been sent or received. `pending` must outlive this object.
  /// Rows without elements are not sent.
  template <class View>
  void send(const View& rows, int to, MessageKind kind, int& pending) {
    if (Message* const m = add(rows, pending)) {
      check_mpi(MPI_Isend(rows.data(), 1, m->type.get(), to, static_cast<int>(kind), comm_.get(), &m->request),
                "MPI_Isend");
      if (to != comm_.rank())
        bytes_sent_ += rows.size_of_element() * rows.dim(0) * rows.dim(1) * rows.dim(2) * rows.dim(3);
    }
  }
  template <class View>
  void receive(const View& rows, int from, MessageKind kind, int& pending) {
    if (Message* const m = add(rows, pending))
      check_mpi(MPI_Irecv(rows.data(), 1, m->type.get(), from, static_cast<int>(kind), comm_.get(), &m->request),
                "MPI_Irecv");
  }

  /// Lets messages make progress.
  void poll() {
    for (auto m = pending_.begin(); m != pending_.end();) {
      int done = 0;
      check_mpi(MPI_Test(&m->request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      if (done != 0) --m->pending;
      m = done != 0 ? pending_.erase(m) : std::next(m);
    }
  }

  /// Waits until `pending` is 0. Returns the seconds that this took.
  double finish(const int& pending) {
    return wait_for([&] {
      poll();
      return pending == 0;
    });
  }

  /// Bytes sent to other ranks.
  Index bytes_sent() const { return bytes_sent_; }

 private:
  struct Message {
    template <class View>
    Message(const View& rows, int& counter) : type(rows), pending(counter) {}

    RowsType type;
    int& pending;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  template <class View>
  Message* add(const View& rows, int& pending) {
    if (rows.dim(0) == 0 || rows.dim(1) == 0 || rows.dim(2) == 0 || rows.dim(3) == 0) return nullptr;
    Message& m = pending_.emplace_back(rows, pending);
    ++pending;
    return &m;
  }

  const Communicator& comm_;
  std::list<Message> pending_;
  Index bytes_sent_ = 0;
};

/// The caller's executor, extended to call `between` on the calling thread after each task that this thread runs.
class ProgressBackend final : public Executor::Backend {
 public:
  ProgressBackend(Executor inner, std::function<void()> between)
      : inner_(std::move(inner)), between_(std::move(between)) {}

  int concurrency() const override { return inner_.concurrency(); }
  int workers_for(double microseconds) const override { return inner_.workers_for(microseconds); }
  void run(Index tasks, TaskRef task) const override {
    with_progress(task, [&](TaskRef both) { inner_.run(tasks, both); });
  }
  void run_with(int workers, double microseconds, Index tasks, TaskRef task) const override {
    with_progress(task, [&](TaskRef both) { inner_.run_with(workers, microseconds, tasks, both); });
  }

 private:
  template <class Run>
  void with_progress(TaskRef task, const Run& run) const {
    const std::thread::id caller = std::this_thread::get_id();
    run([&](Index i, int worker) {
      task(i, worker);
      if (std::this_thread::get_id() == caller) between_();
    });
  }

  Executor inner_;
  std::function<void()> between_;
};

}  // namespace attn::detail
