package certificates

import (
	"fmt"
	"strings"
	"time"
)

// Judge says, from memory, what is wrong with the files at now. ended is why no client can connect to etcd any more, empty if they
// can: the certificate that its client listener shows has ended, or all that it checks clients' with. soon names every other one that
// has ended, or will within 72 hours, and authorities that etcd does not know yet; it is empty if there is none. Other members whom the
// ended authorities of peers shut out are no reason to send clients away: connections that stand go on, and a read through a quorum
// tells when they do not.
//
// Of a certificate with its key the file counts, which etcd reads again for each connection. Those of authorities it reads once, when
// it starts.
func (f *Files) Judge(now time.Time) (ended, soon string) {
	f.refresh(time.Now())
	f.mu.Lock()
	defer f.mu.Unlock()
	var rest []string
	for _, each := range f.found {
		pool, loaded := f.pools[each.Name]
		switch {
		case loaded && !now.Before(pool.lastEnds):
			why := fmt.Sprintf("the authorities of %s that etcd read at its start have expired on %s, so that no %s can connect; %s",
				each.Path, date(pool.lastEnds), others[each.Name], restart)
			if each.Name == EtcdServerCA {
				ended = why
			} else {
				rest = append(rest, why)
			}
		case loaded && pool.digest != each.digest:
			rest = append(rest, fmt.Sprintf("%s %s has changed since etcd read it at its start: restart this member", each.Name, each.Path))
		case each.Name == EtcdServer && !now.Before(each.leafEnds):
			ended = fmt.Sprintf("etcd's server certificate %s has expired on %s, so that no client can connect; renew it in its Secret, etcd reads it again by itself",
				each.Path, date(each.leafEnds))
		case !now.Before(each.Expires):
			rest = append(rest, fmt.Sprintf("%s %s has expired on %s; %s", each.Name, each.Path, date(each.Expires), each.advice()))
		case each.ExpiresSoon(now):
			rest = append(rest, fmt.Sprintf("%s %s expires on %s; %s", each.Name, each.Path, date(each.Expires), each.advice()))
		}
	}
	return ended, strings.Join(rest, "; ")
}

// others are whom a pool of authorities lets in.
var others = map[string]string{EtcdServerCA: "client with a certificate", EtcdPeerCA: "other member"}

func date(at time.Time) string { return at.UTC().Format("2006-01-02 15:04 MST") }
