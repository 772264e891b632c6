"""Key-value stores by which the processes of one program find each other, and the rendezvous over them."""
