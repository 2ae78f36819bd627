// Package peers is what a member that does not run yet can learn from the other members of its cluster, and ask of them:
// whether they know it, whether it may be replaced, and the two changes of the cluster's members that replacing takes.
//
// Members are asked over their peer URLs, which tell anybody with a peer's certificate who is in the cluster; what needs a
// vote goes to their client URLs. With auto-tls or without TLS whoever answers there is believed, as etcd believes its peers then.
// Nothing here decides: recovery's table does.
package peers
