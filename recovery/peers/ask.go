package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.etcd.io/etcd/client/pkg/v3/types"
)

// Ask asks every other member, and answers them from the first time on until Close. It returns within some seconds, or when
// ctx ends.
func (p *Peers) Ask(ctx context.Context, self Self) Census {
	deaf := p.open()
	if deaf == nil { // otherwise the others don't hear of this member, and wait
		p.desk.say(p.call(self))
	}
	answers, calls, silent := p.askAll(ctx, p.others)
	if more := p.notAsked(answers); len(more) > 0 {
		further, _, _ := p.askAll(ctx, more) // a quorum of those that are configured may do without
		answers = append(answers, further...)
	}
	c, by := p.judge(answers)
	if c.Listing == Unknown {
		c.Listing = p.roll(self, answers, calls)
	}
	how := p.positions(ctx, self, &c, answers)
	c.Silent = both(both(p.lacking(self, &c, answers, calls), how), both(deaf, silent))
	c.count(self, answers, calls)
	c.Brought = !slices.ContainsFunc(calls, func(call Call) bool { return !call.Brought })
	if c.Outdated = former(self, &c); c.Outdated == nil && self.MemberID != 0 {
		c.Outdated = p.forgot(ctx, self, &c)
	}
	if c.Listing == Started || c.Listing == Unlisted {
		c.InTheWay = p.inTheWay(ctx, &c, by)
	}
	if several := p.identify(ctx, &c); several != nil {
		c.InTheWay = several
	}
	return c
}

// count sums up who answered what.
func (c *Census) count(self Self, answers []*answer, calls []Call) {
	for _, a := range answers {
		if a.cluster == strconv.FormatUint(self.ClusterID, 16) {
			c.Run, c.Voters = c.Run+1, max(c.Voters, len(voters(a.members)))
		}
	}
	for _, call := range calls {
		if call.Holds == Older {
			c.Older++
		}
	}
	holds := func(what Holds) bool {
		return slices.ContainsFunc(calls, func(call Call) bool { return call.Holds == what })
	}
	c.Grows = holds(Nothing) && !holds(Data)
}

// notAsked are members that an answer names and the configuration does not.
func (p *Peers) notAsked(answers []*answer) map[string][]string {
	more, asked := map[string][]string{}, slices.Concat(slices.Collect(maps.Values(p.others))...)
	for _, a := range answers {
		for _, m := range a.members {
			if !slices.ContainsFunc(m.PeerURLs, func(url string) bool { return p.isOwnURL(url) || slices.Contains(asked, url) }) {
				more[m.ID.String()] = m.PeerURLs
			}
		}
	}
	return more
}

// askAll asks members at the same time.
func (p *Peers) askAll(ctx context.Context, whom map[string][]string) (answers []*answer, calls []Call, silent error) {
	var mu sync.Mutex
	var asking sync.WaitGroup
	failed := map[string]error{}
	for name, urls := range whom {
		asking.Go(func() {
			told, err := p.ask(ctx, name, urls)
			call, waits := p.hear(ctx, name, urls, err)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				answers = append(answers, told)
			case waits:
				calls = append(calls, call)
			default:
				failed[name] = err
			}
		})
	}
	asking.Wait()
	slices.SortFunc(answers, func(a, b *answer) int { return strings.Compare(a.name, b.name) })
	slices.SortFunc(calls, func(a, b Call) int { return strings.Compare(a.Name, b.Name) })
	return answers, calls, silence(failed)
}

// silence names the members that did not answer, and why; nil if there are none.
func silence(failed map[string]error) error {
	if len(failed) == 0 {
		return nil
	}
	var reasons []string
	for _, name := range slices.Sorted(maps.Keys(failed)) {
		reasons = append(reasons, fmt.Sprintf("%s does not answer (%v)", name, quoted(failed[name])))
	}
	return errors.New(strings.Join(reasons, "; "))
}

// ask returns the first answer of one member's URLs.
func (p *Peers) ask(ctx context.Context, name string, urls []string) (*answer, error) {
	err := errors.New("it has no URL")
	for _, at := range urls {
		told := &answer{name: name, url: at}
		if told.cluster, err = p.fetch(ctx, p.peer, at+"/members", &told.members); err != nil {
			continue
		}
		id, unclear := types.IDFromString(told.cluster)
		if told.cluster = id.String(); unclear != nil {
			err = fmt.Errorf("what answers at %s tells no cluster", at)
		} else if err = odd(told.members); err == nil {
			return told, nil
		} else {
			err = fmt.Errorf("what answers at %s tells of %w", at, err)
		}
	}
	return nil, err
}

// fetch reads a document, and the id of the cluster that it came from.
func (p *Peers) fetch(ctx context.Context, from *http.Client, at string, document any) (cluster string, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return "", err
	}
	response, err := from.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: status %d", at, response.StatusCode)
	}
	body := io.LimitReader(response.Body, answerSize)
	if text, plain := document.(*string); plain {
		content, err := io.ReadAll(body)
		*text = string(content)
		return "", err
	}
	if err := json.NewDecoder(body).Decode(document); err != nil {
		return "", fmt.Errorf("%s: no answer that can be read", at)
	}
	return response.Header.Get("X-Etcd-Cluster-ID"), nil
}
