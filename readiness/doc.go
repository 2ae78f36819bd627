// Package readiness is the wrapper's face to the outside: the HTTP server with /readyz, /livez, POST /stop and POST /defrag,
// and the Monitor that knows from inside the process whether the embedded etcd may be used.
//
// The Monitor owns the findings. One goroutine watches etcd and publishes an immutable Report; the server answers from
// that memory, so that no prober can put load on raft. /readyz says 200 only while the lifecycle is Serving and a
// linearizable read that started within the last 3 s has succeeded. The age is computed when the answer is given, so a
// Monitor that stalls cannot stay green.
//
// What else there is to tell lives below: status (GET /lifecycle), metrics (GET /metrics) and page (GET /). They are
// handlers that the command adds to the server by Options.Routes.
//
// The server answers on its port from the first instant to the end. Where TLS is expected it begins with a certificate of
// its own making, until the real one is known. On loopback it understands plain HTTP as well, always: one port that
// whoever is in the pod can ask without knowing anything of certificates. A socket on the volume was the other way to
// that; it would depend on the volume, which is what may hang or be read-only when somebody asks.
//
// Only the command calls this package. It imports neither the lifecycle nor etcd: the command adapts both, by Options
// and by Target.
package readiness
