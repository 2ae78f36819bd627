package dataversion

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/version"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"
)

const (
	// downgradeWait bounds the wait of a new member until its peers have canceled a downgrade: they check once a second,
	// and an election takes seconds more.
	downgradeWait = time.Minute
	// retryPause is the pause before peers are asked again, and answerTimeout bounds the answer of one of them.
	retryPause    = 500 * time.Millisecond
	answerTimeout = 5 * time.Second
	// answerSize bounds what is read of an answer, in bytes.
	answerSize = 4 << 10
)

// AwaitPeers waits for the peers of a member without data that joins a running cluster. It returns the cluster's
// version as soon as etcd would admit the member. The error is an *UpgradeError if a peer runs an etcd that this one
// must not join; otherwise the peers have held a downgrade for a minute, or ctx has ended. say is called once, with
// the reason for a wait. If no peer can be reached AwaitPeers returns at once with a zero version: etcd finds that
// out as well, and explains it better.
func AwaitPeers(ctx context.Context, config *embed.Config, say func(reason string)) (Version, error) {
	peers, err := peersOf(config)
	if err != nil {
		return Version{}, nil //nolint:nilerr // see above
	}
	defer peers.client.CloseIdleConnections()
	return peers.await(ctx, downgradeWait, say)
}

type peers struct {
	urls   []string
	client *http.Client
}

func peersOf(config *embed.Config) (*peers, error) {
	members, err := types.NewURLsMap(config.InitialCluster)
	if err != nil {
		return nil, err
	}
	delete(members, config.Name)
	info := config.PeerTLSInfo
	info.InsecureSkipVerify = info.InsecureSkipVerify || config.PeerAutoTLS && info.Empty() // as etcd will, with certificates of its own making
	transport, err := rafthttp.NewRoundTripper(info, answerTimeout)
	if err != nil {
		return nil, err
	}
	urls := slices.Sorted(slices.Values(members.URLs()))
	return &peers{urls: urls, client: &http.Client{Transport: transport, Timeout: answerTimeout}}, nil
}

func (p *peers) await(ctx context.Context, bound time.Duration, say func(reason string)) (Version, error) {
	deadline := time.Now().Add(bound)
	for told := false; p.downgrading(ctx); told = true {
		if !told {
			say("waits until its peers let go of a downgrade, during which etcd admits no new member")
		}
		if time.Now().After(deadline) {
			return Version{}, fmt.Errorf("cannot join: for %s the cluster has been held at an older version by a downgrade, during "+
				"which etcd admits no new member; end it with `etcdctl downgrade cancel` on one of its members", bound)
		}
		select {
		case <-ctx.Done():
			return Version{}, fmt.Errorf("gave up while peers hold a downgrade: %w", ctx.Err())
		case <-time.After(retryPause):
		}
	}
	highest, oldest := p.versions(ctx)
	return highest, checkOldest(oldest)
}

// downgrading reports whether a downgrade is enabled, by the first peer that answers. That peer asks its leader, so
// one is enough.
func (p *peers) downgrading(ctx context.Context) bool {
	for _, url := range p.urls {
		answer, err := p.get(ctx, url+etcdserver.DowngradeEnabledPath)
		if err != nil {
			continue
		}
		if enabled, err := strconv.ParseBool(string(answer)); err == nil {
			return enabled
		}
	}
	return false
}

// versions returns the highest cluster version that a peer names, as one that was down may lag behind, and the oldest version
// that a peer runs. Both are unknown if no peer answers.
func (p *peers) versions(ctx context.Context) (highest, oldest Version) {
	for _, url := range p.urls {
		answer, err := p.get(ctx, url+"/version")
		if err != nil {
			continue
		}
		var versions version.Versions
		if err := json.Unmarshal(answer, &versions); err != nil {
			continue
		}
		if v := Parse(versions.Cluster); highest.Less(v) {
			highest = v
		}
		if v := Parse(versions.Server); v != (Version{}) && (oldest == (Version{}) || v.Less(oldest)) {
			oldest = v
		}
	}
	return highest, oldest
}

func (p *peers) get(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := p.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, errors.New(response.Status)
	}
	return io.ReadAll(io.LimitReader(response.Body, answerSize))
}
