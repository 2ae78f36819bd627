package wire

import (
	"iter"

	"etcd-wrapper/backup/store"
)

// Pages lists a page at a time. page returns the objects of the page at a mark, and the next page's mark: the first one's is
// empty, and behind the last there is none. An error comes last.
func Pages(page func(mark string) (objects []store.Object, next string, err error)) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		for mark := ""; ; {
			objects, next, err := page(mark)
			if err != nil {
				yield(store.Object{}, err)
				return
			}
			for _, object := range objects {
				if !yield(object, nil) {
					return
				}
			}
			if mark = next; mark == "" {
				return
			}
		}
	}
}
