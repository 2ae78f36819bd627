package certificates

import (
	"fmt"
	"strings"
	"time"
)

// Judge says, from memory, what is wrong with the files at now. ended is why no client can connect to etcd, empty if they
// can: the certificate that its client listener shows has ended, or all that it checks clients' with. soon names every other one that
// has ended, or will within 72 hours, and authorities that etcd does not know yet; it is empty if there is none.
//
// Of a certificate with its key the file counts, which etcd reads again for each connection. Those of authorities it reads once, when
// it starts.
func (f *Files) Judge(now time.Time) (ended, soon string) {
	f.refresh(time.Now())
	f.mu.Lock()
	defer f.mu.Unlock()
	var others []string
	for _, each := range f.found {
		pool, loaded := f.pools[each.Name]
		switch {
		case loaded && each.Name == EtcdServerCA && !now.Before(pool.lastEnds):
			ended = fmt.Sprintf("the authorities of %s that etcd read at its start have expired on %s, so that no client with a certificate can connect; %s",
				each.Path, date(pool.lastEnds), restart)
		case loaded && pool.digest != each.digest:
			others = append(others, fmt.Sprintf("%s %s has changed since etcd read it at its start: restart this member", each.Name, each.Path))
		case each.Name == EtcdServer && !now.Before(each.leafEnds):
			ended = fmt.Sprintf("etcd's server certificate %s has expired on %s, so that no client can connect; renew it in its Secret, etcd reads it again by itself",
				each.Path, date(each.leafEnds))
		case !now.Before(each.Expires):
			others = append(others, fmt.Sprintf("%s %s has expired on %s", each.Name, each.Path, date(each.Expires)))
		case each.ExpiresSoon(now):
			others = append(others, fmt.Sprintf("%s %s expires on %s", each.Name, each.Path, date(each.Expires)))
		}
	}
	return ended, strings.Join(others, "; ")
}

func date(at time.Time) string { return at.UTC().Format("2006-01-02 15:04 MST") }
