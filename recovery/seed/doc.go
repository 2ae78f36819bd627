// Package seed builds the data directory of a restored cluster: a rebuilt database, and a log and a snapshot that
// start a new history with it. The cluster has new IDs even if names and URLs are the old ones, so members of the old
// one that may still run elsewhere belong to another cluster.
package seed
