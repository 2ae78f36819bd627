package certificates

import (
	"fmt"
	"strings"
	"time"
)

// Check returns, from memory, what is wrong with the files at now. ended is the reason why no client can connect to etcd: the certificate of
// its client listener, or all authorities that it verifies clients with, are not valid now. soon lists all other problems: files that
// are not valid now or expire within 72 hours, authorities that etcd has not read yet, and listeners whose certificates others reject.
// Expired authorities of peers do not count as ended: established connections stay, and linearizable reads fail once they close.
//
// etcd reads its own certificate and key for each connection, so the file counts. It reads authorities once, at its start.
func (f *Files) Check(now time.Time) (ended, soon string) {
	f.refresh(time.Now())
	f.mu.Lock()
	defer f.mu.Unlock()
	var rest []string
	for _, each := range f.files {
		switch reason, excludesClients := each.check(f.pools[each.Name], now); {
		case excludesClients:
			ended = reason
		case reason != "":
			rest = append(rest, reason)
		}
	}
	return ended, strings.Join(append(rest, f.rejected...), "; ")
}

const (
	renew   = "renew it in its Secret, the file is read again by itself"
	restart = "renew it in its Secret, and restart this member: etcd reads it once, at its start"
	reissue = "set this machine's clock, or have it issued again"
)

// check returns what is wrong with a file and whether that excludes clients. read is the content that etcd read, for authorities.
func (f file) check(read file, now time.Time) (reason string, excludesClients bool) {
	advice, isLoaded, hasChanged := renew, read.Path != "", read.digest != f.digest
	switch {
	case isLoaded && hasChanged:
		advice = "restart this member: the file is renewed already"
	case f.isPool():
		advice = restart
	}
	leaf, authorities := f.leaf.checkTime(now, advice), read.any.checkTime(now, advice)
	switch {
	case isLoaded && authorities != "":
		return fmt.Sprintf("no %s can connect: %s %s, as etcd read it at its start, %s", peers[f.Name], f.Name, f.Path, authorities), f.Name == EtcdServerCA
	case isLoaded && hasChanged:
		return fmt.Sprintf("%s %s has changed since etcd read it at its start: restart this member", f.Name, f.Path), false
	case f.Name == EtcdServer && leaf != "":
		return fmt.Sprintf("no client can connect: etcd's server certificate %s %s", f.Path, leaf), true
	}
	problem := period{f.NotBefore, f.NotAfter}.checkTime(now, advice)
	if problem == "" && f.IsExpiring(now) {
		problem = fmt.Sprintf("expires on %s; %s", date(f.NotAfter), advice)
	}
	if problem != "" {
		problem = fmt.Sprintf("%s %s %s", f.Name, f.Path, problem)
	}
	return problem, false
}

// checkTime returns why certificates are not valid at now, with advice, or "".
func (v period) checkTime(now time.Time, advice string) string {
	switch {
	case !now.Before(v.end):
		return fmt.Sprintf("has expired on %s; %s", date(v.end), advice)
	case now.Before(v.start):
		return fmt.Sprintf("is not valid before %s; %s", date(v.start), reissue)
	default:
		return ""
	}
}

// peers names what a pool of authorities admits.
var peers = map[string]string{EtcdServerCA: "client with a certificate", EtcdPeerCA: "other member"}

func date(at time.Time) string { return at.UTC().Format("2006-01-02 15:04 MST") }
