package readiness

import (
	"container/list"
	"net"
	"net/http"
	"sync"
)

// crowd bounds the connections that are open. One too many is let in all the same, since it may be the kubelet's: the one
// that has been waiting longest without a request goes. Only when every other connection has a request under way does
// the new one go itself.
type crowd struct {
	limit int

	mu      sync.Mutex
	all     map[net.Conn]*list.Element // nil while a request is under way
	waiting *list.List                 // connections without a request, the one that waits longest first
}

func newCrowd(limit int) *crowd {
	return &crowd{limit: limit, all: map[net.Conn]*list.Element{}, waiting: list.New()}
}

// change is called by the HTTP server.
func (c *crowd) change(conn net.Conn, to http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if place := c.all[conn]; place != nil {
		c.waiting.Remove(place)
	}
	switch to {
	case http.StateNew, http.StateIdle:
		c.all[conn] = c.waiting.PushBack(conn)
	case http.StateActive:
		c.all[conn] = nil
	default: // closed
		delete(c.all, conn)
	}
	if len(c.all) > c.limit {
		c.sendAway()
	}
}

// sendAway closes below TLS, whose farewell could block.
func (c *crowd) sendAway() {
	longest := c.waiting.Front()
	if longest == nil {
		return
	}
	conn := c.waiting.Remove(longest).(net.Conn)
	delete(c.all, conn)
	if encrypted, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = encrypted.NetConn()
	}
	_ = conn.Close() // the server notices and forgets it
}
