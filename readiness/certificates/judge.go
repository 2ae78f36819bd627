package certificates

import (
	"fmt"
	"strings"
	"time"
)

// Judge returns, from memory, what is wrong with the files at now. ended is the reason why no client can connect to etcd: the certificate of
// its client listener, or all authorities that it verifies clients with, are not valid now. soon lists all other problems: files that
// are not valid now or expire within 72 hours, authorities that etcd has not read yet, and listeners whose certificates others refuse.
// Expired authorities of peers are no reason to send clients away: established connections stay, and linearizable reads fail once they
// do not.
//
// etcd reads its own certificate and key for each connection, so the file counts. It reads authorities once, at its start.
func (f *Files) Judge(now time.Time) (ended, soon string) {
	f.refresh(time.Now())
	f.mu.Lock()
	defer f.mu.Unlock()
	var rest []string
	for _, each := range f.found {
		switch why, clients := each.judge(f.pools[each.Name], now); {
		case clients:
			ended = why
		case why != "":
			rest = append(rest, why)
		}
	}
	return ended, strings.Join(append(rest, f.refused...), "; ")
}

// judge returns what is wrong with a file and whether that shuts clients out. read is the content that etcd read, for authorities.
func (f file) judge(read file, now time.Time) (why string, clients bool) {
	loaded := read.Path != ""
	shuts := func(is, wayOut string) (string, bool) {
		return fmt.Sprintf("the authorities of %s that etcd read at its start %s, so that no %s can connect; %s", f.Path, is, others[f.Name], wayOut), f.Name == EtcdServerCA
	}
	switch {
	case loaded && !now.Before(read.any.ends) && read.digest != f.digest:
		return shuts("have expired on "+date(read.any.ends), "restart this member: they are renewed already")
	case loaded && !now.Before(read.any.ends):
		return shuts("have expired on "+date(read.any.ends), restart)
	case loaded && now.Before(read.any.begins):
		return shuts("are not valid before "+date(read.any.begins), early)
	case loaded && read.digest != f.digest:
		return fmt.Sprintf("%s %s has changed since etcd read it at its start: restart this member", f.Name, f.Path), false
	case f.Name == EtcdServer && !now.Before(f.leaf.ends):
		return fmt.Sprintf("etcd's server certificate %s has expired on %s, so that no client can connect; %s", f.Path, date(f.leaf.ends), renew), true
	case f.Name == EtcdServer && now.Before(f.leaf.begins):
		return fmt.Sprintf("etcd's server certificate %s is not valid before %s, so that no client can connect; %s", f.Path, date(f.leaf.begins), early), true
	case !now.Before(f.NotAfter):
		return fmt.Sprintf("%s %s has expired on %s; %s", f.Name, f.Path, date(f.NotAfter), f.advice()), false
	case now.Before(f.NotBefore):
		return fmt.Sprintf("%s %s is not valid before %s; %s", f.Name, f.Path, date(f.NotBefore), early), false
	case f.ExpiresSoon(now):
		return fmt.Sprintf("%s %s expires on %s; %s", f.Name, f.Path, date(f.NotAfter), f.advice()), false
	}
	return "", false
}

// others names the peers that a pool of authorities admits.
var others = map[string]string{EtcdServerCA: "client with a certificate", EtcdPeerCA: "other member"}

func date(at time.Time) string { return at.UTC().Format("2006-01-02 15:04 MST") }
