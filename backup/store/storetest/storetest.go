// Package storetest contains the contract of every store, as tests.
package storetest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/wire"
)

// Subject is a store under test.
type Subject struct {
	// Open returns an empty store at a new place.
	Open func(t *testing.T) store.Store
	// Through returns a store behind a proxy; nil for a store without a network.
	Through func(t *testing.T, proxy *Proxy) store.Store
	// Missing returns a store without a bucket, Denied one with wrong credentials; nil if that is impossible.
	Missing, Denied func(t *testing.T) store.Store
	// Whole means that the store does not split objects, so small ones suffice.
	Whole bool
	// Holds means that the store keeps objects in the memory of this process.
	Holds bool
}

// large returns the length of an object of several pieces.
func (s Subject) large() int {
	if s.Whole {
		return 300_001
	}
	return 2*wire.PieceSize + 12345
}

const (
	patience = 2 * time.Minute // limit of every wait
	huge     = 64 << 20
)

// Run runs the contract.
func Run(t *testing.T, subject Subject) {
	c := contract{Subject: subject}
	t.Run("an object of any length is read back", c.created)
	t.Run("an object that exists stays as it is", c.exists)
	t.Run("of several creators of one name exactly one wins", c.concurrent)
	t.Run("an object of unknown length goes through bounded memory", c.bounded)
	t.Run("a range is what lies between two offsets", c.ranges)
	t.Run("a listing is in order and resumes after a name", c.listing)
	t.Run("a prefix may end in the middle of a name", c.prefix)
	t.Run("a deleted object is absent and may be created again", c.deleted)
	t.Run("names with every allowed character stay what they are", c.names)
	t.Run("a name that is not allowed is refused", c.badNames)
	t.Run("a cancelled context leaves nothing", c.cancelledUpload)
	t.Run("a cancelled listing does not seem complete", c.cancelledListing)
	t.Run("content that cannot be read leaves nothing", c.sourceFails)
	t.Run("the probe finds create-if-absent honoured and leaves nothing", c.probe)
	t.Run("a missing bucket is reported", c.missing)
	t.Run("wrong credentials are reported", c.denied)
	t.Run("a lost reply is resolved", c.lostReply)
	t.Run("an upload that is cut off leaves nothing", c.cutUpload)
	t.Run("a download that is cut off does not seem complete", c.cutDownload)
}

type contract struct{ Subject }

// many returns a number larger than a page of any server, and small enough for a disk to sync.
func (s Subject) many() int {
	if s.Whole {
		return 200
	}
	return 1100
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// Pattern returns content of a length that differs everywhere and by seed.
func Pattern(seed byte, length int) io.Reader {
	return io.LimitReader(&pattern{seed: seed}, int64(length))
}

// pattern consists of numbered blocks. They are copied, not computed, because the race detector is slow with bytes.
type pattern struct {
	seed  byte
	at    int
	block [4096]byte
}

func (p *pattern) Read(to []byte) (int, error) {
	inside := p.at % len(p.block)
	if inside == 0 {
		binary.BigEndian.PutUint64(p.block[:], uint64(p.at))
		p.block[8] = p.seed
	}
	n := copy(to, p.block[inside:])
	p.at += n
	return n, nil
}

func bytesOf(t *testing.T, content io.Reader) []byte {
	all, err := io.ReadAll(content)
	require.NoError(t, err)
	return all
}

func put(t *testing.T, s store.Store, name string, content io.Reader) {
	t.Helper()
	require.NoError(t, s.Put(testContext(t), name, content))
}

func get(t *testing.T, s store.Store, name string, offset, length int64) []byte {
	t.Helper()
	body, err := s.Get(testContext(t), name, offset, length)
	require.NoError(t, err)
	defer body.Close()
	return bytesOf(t, body)
}

func names(t *testing.T, s store.Store, prefix, after string) (found []string) {
	t.Helper()
	for object, err := range s.List(testContext(t), prefix, after) {
		require.NoError(t, err)
		found = append(found, object.Name)
	}
	return found
}

func assertMissing(t *testing.T, s store.Store, name string) {
	t.Helper()
	_, err := s.Get(testContext(t), name, 0, -1)
	assert.ErrorIs(t, err, store.ErrNotFound)
	assert.Empty(t, names(t, s, "", ""))
}

func (c contract) created(t *testing.T) {
	s := c.Open(t)
	lengths := []int{0, 1, 100_000, c.large()}
	if !c.Whole {
		lengths = append(lengths, wire.PieceSize-1, wire.PieceSize, wire.PieceSize+1)
	}
	for _, length := range lengths {
		name := fmt.Sprintf("sizes/%d", length)
		before := time.Now().Add(-time.Minute)
		put(t, s, name, Pattern(1, length))
		assert.True(t, bytes.Equal(bytesOf(t, Pattern(1, length)), get(t, s, name, 0, -1)), name)
		for object, err := range s.List(testContext(t), name, "") {
			require.NoError(t, err)
			assert.Equal(t, int64(length), object.Size, name)
			assert.WithinRange(t, object.Modified, before, time.Now().Add(time.Minute))
			break
		}
	}
	assert.Len(t, names(t, s, "", ""), len(lengths))
}

func (c contract) exists(t *testing.T) {
	s := c.Open(t)
	for _, length := range []int{10, c.large()} {
		name := fmt.Sprintf("taken-%d", length)
		put(t, s, name, Pattern(1, length))
		for _, second := range []int{20, c.large()} {
			assert.ErrorIs(t, s.Put(testContext(t), name, Pattern(2, second)), store.ErrExists)
		}
		assert.True(t, bytes.Equal(bytesOf(t, Pattern(1, length)), get(t, s, name, 0, -1)))
	}
}

func (c contract) concurrent(t *testing.T) {
	s := c.Open(t)
	for _, length := range []int{1000, c.large()} {
		name := fmt.Sprintf("race-%d", length)
		winner := race(t, s, name, length)
		require.NotZero(t, winner, "nobody won")
		assert.True(t, bytes.Equal(bytesOf(t, Pattern(winner, length)), get(t, s, name, 0, -1)))
	}
}

// race lets six writers create one name with different contents, and returns the winner.
func race(t *testing.T, s store.Store, name string, length int) byte {
	var winner atomic.Uint32
	var racers sync.WaitGroup
	for racer := byte(1); racer <= 6; racer++ {
		racers.Go(func() {
			_, err := store.PutOnce(testContext(t), s, name, Pattern(racer, length))
			// A server may be busy with another request.
			for errors.Is(err, store.ErrUnavailable) && t.Context().Err() == nil {
				_, err = store.PutOnce(testContext(t), s, name, Pattern(racer, length))
			}
			if err == nil {
				assert.True(t, winner.CompareAndSwap(0, uint32(racer)), "two won")
			} else {
				assert.ErrorIs(t, err, store.ErrExists)
			}
		})
	}
	racers.Wait()
	return byte(winner.Load())
}

func (c contract) ranges(t *testing.T) {
	s := c.Open(t)
	put(t, s, "ten", strings.NewReader("0123456789"))
	put(t, s, "empty", strings.NewReader(""))
	for _, one := range []struct {
		name           string
		offset, length int64
		want           string
	}{
		{"ten", 0, -1, "0123456789"},
		{"ten", 0, 3, "012"},
		{"ten", 4, 3, "456"},
		{"ten", 4, -1, "456789"},
		{"ten", 8, 100, "89"},
		{"ten", 0, 100, "0123456789"},
		{"ten", 9, 1, "9"},
		{"ten", 10, 1, ""},
		{"ten", 10, -1, ""},
		{"ten", 99, 5, ""},
		{"ten", 3, 0, ""},
		{"empty", 0, -1, ""},
		{"empty", 0, 5, ""},
		{"empty", 5, 5, ""},
	} {
		assert.Equal(t, one.want, string(get(t, s, one.name, one.offset, one.length)), "%+v", one)
	}
	for _, length := range []int64{-1, 0, 7} {
		_, err := s.Get(testContext(t), "absent", 0, length)
		assert.ErrorIs(t, err, store.ErrNotFound)
	}
}
