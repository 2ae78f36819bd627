package certificates

import (
	"fmt"
	"strings"
	"time"
)

// Judge says, from memory, what is wrong with the files at now. ended is why no client can connect to etcd, empty if they can: the
// certificate that its client listener shows has ended or not begun, or all that it checks clients' with. soon names every other one of
// which that is so, or that ends within 72 hours, and authorities that etcd does not know yet; it is empty if there is none. Other members
// whom the ended authorities of peers shut out are no reason to send clients away: connections that stand go on, and a read through a
// quorum tells when they do not.
//
// Of a certificate with its key the file counts, which etcd reads again for each connection. Those of authorities it reads once, when
// it starts.
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

// judge says what is wrong with a file, of which etcd has read read if it is one of authorities, and whether that shuts clients out.
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

// others are whom a pool of authorities lets in.
var others = map[string]string{EtcdServerCA: "client with a certificate", EtcdPeerCA: "other member"}

func date(at time.Time) string { return at.UTC().Format("2006-01-02 15:04 MST") }
