// Package lifecycle is the state machine that takes an etcd pod from the first request to the sidecar to the exit
// record. The command runs the state machine and connects it to the sidecar, the volume, the exit record, the
// embedded etcd and the wrapper's own server.
//
// # The idea
//
// An etcd member may open its data only after the data has been validated, either by the sidecar
// etcd-backup-restore or by this program (--standalone). Many things can go wrong in any order, both between the
// start of the process and the validation result and between the stop request and the exit. The sidecar may not
// respond, may restart and forget its task, or may report corrupt data. Another process may have locked the volume,
// a signal may arrive, or etcd may hang or die. A single table (table.go) lists the reaction to every event in
// every state. The transitions, diagrams, user-facing messages, golden matrix of all reactions and most tests are
// derived from the table.
//
// A run looks like this:
//
//	Query -> Trigger -> Wait -> Query -> … -> FetchConfig -> StartEtcd -> Serving -> Terminating -> Terminated
//
// Query requests the initialization status, Trigger requests an initialization, and Wait pauses before the next
// Query. After the status Successful, FetchConfig fetches and checks the etcd configuration, StartEtcd opens etcd,
// and Serving lasts until a stop or a failure. Terminating closes etcd and writes the exit record. Terminating can
// be reached from every state but Terminated. No state in which etcd is running leads back to an initialization,
// because the sidecar deletes data if it considers the data corrupt.
//
// # The parts
//
//   - The table (table.go) consists of rows. If an event occurs in the row's state and the guard holds, the machine
//     moves to the row's next state and performs the row's actions. A row can apply to a group of states
//     (vocabulary.go). Users see the message of the row, and condition.go adds the next step.
//   - The core (core.go) is pure. Facts contains everything that the guards depend on, and the exit status. The time
//     and the outside world are visible only in the payloads of events.
//   - The driver (driver.go) performs the transitions. A single goroutine owns the driver's state and reads two
//     mailboxes. Stops and crashes have a separate mailbox, which takes precedence.
//   - pace.go defines all durations: the time limits of a stop and the pauses between requests.
//   - Work (work.go) is the blocking part. The blocking actions of a row run sequentially in one goroutine, which
//     posts exactly one completion. work.go also declares the interfaces that the actions need. early.go decides
//     whether a configuration that was fetched during the validation is usable.
//   - timeline.go and condition.go manage what users see: the history, the counts, the current condition and the log
//     lines.
//
// # Invariants
//
// Tests explore all reachable combinations of state, facts and outside world, and check these invariants at every
// step:
//
//   - etcd opens the data only after this process has read Successful and has locked the volume and the data
//     directory.
//   - The exit record never claims a clean close that did not happen. The record is removed before etcd opens the
//     data. The record is written only if a stop was requested and closing etcd has returned.
//   - No initialization is requested while any etcd server has the data open.
//   - Every visit to a state other than Serving ends eventually, because of a timer, the deadline of a call, or a
//     stop.
//   - A stop takes at most StopBudget if etcd has been started, and at most AbortBudget otherwise.
//   - Tasks never overlap. A new task cancels the previous one and waits for it, so the exit record needs no lock.
//     The only exception is the prefetch of the configuration, which may only call the sidecar.
//   - Late results are discarded. A completion carries the number of its task, and a timer carries the number of its
//     visit, so neither has any effect after the task or visit has ended.
//
// # An example
//
// A member restarts after it was killed. The driver handles Started in Query, whose row has the actions LockVolume
// and AskStatus. LockVolume and AskStatus may block, so they run in a task, which ends with Replied and the status
// New. The guard StatusNew holds, so the machine moves to Trigger and runs ProbeData and AskInit. No other process
// has the data open, and the sidecar accepts the request for a full validation because there is no exit record, so
// the task ends with Accepted. The machine moves to Wait, where PaceProgress sets the timer to 5 ms and
// PrefetchConfig starts the prefetch. Wait and Query alternate, with pauses of about 4% of the time waited so far,
// until the status is Successful. The prefetched configuration is recent enough and the member has a log, so the
// guard ConfigKept holds, and the configuration is checked without another request. ConfigValid leads to StartEtcd,
// which removes the exit record and opens etcd. EtcdReady leads to Serving.
//
// Then SIGTERM arrives. The machine moves to Terminating, sets the timer to the time limit of a stop and closes
// etcd. EtcdClosed with ClosedCleanly satisfies CleanStop, so WriteRecord runs, and RecordSettled ends the run with
// status 0. If etcd had failed before the stop, CleanStop would not hold: the run would end without a record, and
// the next start would run a full validation.
//
// # Limits
//
// The package does not decide whether the data is usable (see bootstrap and recovery), whether etcd is ready (see
// readiness), or what to back up. The package does not contain any code for HTTP, files or etcd.
package lifecycle
