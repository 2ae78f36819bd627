// Package seed makes the data directory that a restored cluster grows from: a rebuilt database, and a log and a snapshot
// that begin a new history with it. The cluster has new ids, even if names and URLs are the old ones, so that members of
// the old one, which may still be running somewhere, are another cluster's to it.
package seed
