// Package lifecycle is the machine that takes an etcd pod from its first request to the sidecar to the exit record.
// The command calls it, and wires it to the sidecar, the volume, the exit record, the embedded etcd and the wrapper's
// own server.
//
// # The idea
//
// An etcd member may only open its data after it has been validated: by the sidecar etcd-backup-restore, or by this
// program itself with --standalone. Between the start of the process and that result, and again between the request to
// stop and the exit, a lot can go wrong in any order: the sidecar does not answer, restarts and forgets its task, or
// reports that the data is corrupt; another process has the volume; a signal arrives; etcd hangs or dies. The package
// lists every such event in every state in one table (table.go), and everything else is derived from that table: the
// moves, the diagrams, the messages to users, the golden matrix of all answers and most tests.
//
// A run looks like this:
//
//	Query -> Trigger -> Wait -> Query -> … -> FetchConfig -> StartEtcd -> Serving -> Terminating -> Terminated
//
// Query asks for the status of the initialization, Trigger requests one, Wait pauses before the next Query. After the
// status Successful, FetchConfig obtains and checks etcd's configuration, StartEtcd opens etcd, and Serving lasts
// until a stop or a failure. Terminating closes etcd and writes the exit record. Every state but Terminated can reach
// Terminating, and no state with etcd running leads back to an initialization, because the sidecar deletes data that
// it finds corrupt.
//
// # The parts
//
//   - The table (table.go) consists of rows: in a state, on an event, if a guard holds, go to a state and do some actions. Rows
//     may start in a group of states (vocabulary.go). The sentence of a row is what users read; messages.go adds next steps.
//   - The core (core.go) is pure: Facts hold what the guards depend on, and the exit status. Time and the outside world enter
//     only as the payload of events.
//   - The driver (driver.go) carries out what the table answers. One goroutine owns everything and reads two mailboxes. Stops and
//     crashes have their own mailbox, which is read first.
//   - Work (work.go) is the blocking part: each row's blocking actions run in order in one goroutine, which posts exactly one
//     completion event. The interfaces that they need are declared there.
//   - pace.go holds all durations: the budgets of a stop and the pauses between requests. early.go decides whether a configuration
//     that was fetched during the validation may be used.
//   - timeline.go and condition.go keep what users see: the history, the counts, the current condition, and the log lines.
//
// # Invariants
//
// Tests explore every reachable combination of state, facts and truth, and check these at every step:
//
//   - etcd opens the data only after this process has read Successful, and holds both the volume's lock and the data's.
//   - The exit record never claims a clean close that did not happen. It is removed before etcd opens the data, and written
//     after etcd's close has returned, and only if a stop was requested.
//   - No initialization is requested while any etcd has the data open.
//   - Every visit to a state ends: by the state's timer, by the deadline of a call, or by a stop. Serving is the exception.
//   - A stop takes at most StopBudget once etcd was started, and AbortBudget before.
//   - Pieces of work never overlap. A new one cancels the last one and waits for it, which makes the exit record safe to use. The
//     advance fetch of the configuration is the exception; it may ask the sidecar and must touch nothing else.
//   - Late results are dropped. A completion carries the number of its task and a timer the number of its visit; neither has an
//     effect after that task or visit has ended.
//
// # An example
//
// A member restarts after a kill. The driver handles Started in Query: the row's actions are LockVolume and AskStatus.
// Both may block, so they run as one piece of work, which ends with Replied and the status New. The guard StatusNew
// holds, so the machine goes to Trigger and the work is ProbeData and AskInit. No other process has the data open, the
// sidecar accepts the request for a full validation (the exit record is missing), and the work ends with Accepted. The
// machine goes to Wait, where PaceProgress sets the timer to 5 ms and PrefetchConfig starts the advance fetch. Wait
// and Query alternate, with pauses of about 4% of the time waited so far. The status becomes Successful. The
// prefetched configuration is young enough and belongs to a member with a log, so the guard ConfigKept holds, and the
// configuration is checked without another request. ConfigValid leads to StartEtcd, which removes the exit record and
// opens etcd; EtcdReady leads to Serving.
//
// Then SIGTERM arrives. The machine goes to Terminating, sets the timer to the budget of a stop and closes etcd.
// EtcdClosed with ClosedInOrder satisfies CleanStop, so WriteRecord runs, and RecordSettled ends the run with status
// 0. Had etcd failed first, the guard would not hold: the machine would end without a record, and the next start would
// validate in full.
//
// # What it does not do
//
// It does not decide whether data are usable (bootstrap and recovery do), whether etcd is ready (readiness does), or
// what is backed up. It knows no HTTP, no files and no etcd.
package lifecycle
